"""Host memory of a conversion, and of loading and restoring what it wrote.

What is counted: resident anonymous memory of a fresh process, every half millisecond, above what it held after doing the same
once and letting go of it (modules, threads, pools of small objects). Pages of mapped files aren't counted: they are the
system's, which drops them when it needs the space. CPU devices have their memory on the host, so all but one device's shards
are subtracted: on real devices they would lie elsewhere. A tensor counts as it is stored.
"""

from pathlib import Path

import pytest
from checkpoints import Style, write_checkpoint
from resident_memory import in_fresh_process
from sharding_checkpoints import LARGE

from onecat_jax.loading import Checkpoint
from onecat_jax.loading.orbax.convert import convert

SLACK = 2**20  # threads that start, pieces of freed blocks
WINDOW = 4 * 2**20

_CONVERT = """
import json, sys
from onecat_jax.loading.orbax import writer
from onecat_jax.loading import Checkpoint
from onecat_jax.loading.orbax.convert import convert
from resident_memory import Peak
writer._WINDOW = {window}
convert({source!r}, {out!r} + "-before")
with Peak() as peak:
    done = convert({source!r}, {out!r})
print(json.dumps([peak.bytes, done.nbytes]))
"""

_LOAD = """
import gc, json, jax
jax.config.update("jax_num_cpu_devices", 4)
from conversions import load
from onecat_jax.loading.orbax import restore_canonical
from onecat_jax.sharding import Placement
from resident_memory import Peak
from sharding_checkpoints import bytes_on
measured = {{}}
for ranks in (1, 4):
    for what, do in {{"load": load, "restore": lambda f, n: restore_canonical(f, Placement.of(n))}}.items():
        do({out!r}, ranks)
        gc.collect()
        with Peak() as peak:
            made = do({out!r}, ranks)
        measured[f"{{what}} {{ranks}}"] = peak.bytes, bytes_on(jax.devices()[0], made)
        del made
print(json.dumps(measured))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("memory")
    return {
        "dense": write_checkpoint(root / "dense", LARGE),
        "modelopt": write_checkpoint(root / "modelopt", LARGE, Style(naming="modelopt")),
    }


def largest(folder: Path) -> int:
    return max(info.nbytes for info in Checkpoint.open(folder).tensors.values())


@pytest.mark.parametrize("model", ["dense", "modelopt"])
def test_a_conversion_holds_a_window_and_a_tensor(
    folders: dict[str, Path], tmp_path: Path, model: str
):
    code = _CONVERT.format(window=WINDOW, source=str(folders[model]), out=str(tmp_path / "out"))
    peak, nbytes = in_fresh_process(code)
    print(f"\n{model}: {peak / 1e6:.1f} MB at most to write {nbytes / 1e6:.1f} MB")
    assert peak <= WINDOW + largest(folders[model]) + SLACK < nbytes


@pytest.mark.parametrize("model", ["dense", "modelopt"])
def test_shards_are_all_that_loading_and_restoring_hold_beside_a_tensor(
    folders: dict[str, Path], model: str
):
    """Weights as the engine loads them and arrays as `restore_canonical` gives them, on one device and on four."""
    out = convert(folders[model], folders[model].with_name(f"{model}-out")).folder
    for what, (peak, shards) in in_fresh_process(_LOAD.format(out=str(out))).items():
        others = (int(what.split()[1]) - 1) * shards
        print(
            f"\n{model}, {what}: {(peak - others) / 1e6:.1f} MB at most for {shards / 1e6:.1f} MB a device"
        )
        assert peak - others <= 1.2 * shards + largest(out) + SLACK, what
