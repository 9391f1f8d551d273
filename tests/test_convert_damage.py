"""Folders that aren't a complete conversion are refused by name.

Oracle: the damage that the test itself did: the message must name it and say what to do.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from checkpoints import (
    SMALL,
    Style,
    write_checkpoint,
    write_json,
)
from conversions import FOUR, converted, host_tensors, load

from onecat_jax.cli.main import main
from onecat_jax.errors import CheckpointError
from onecat_jax.loading import Checkpoint
from onecat_jax.loading.orbax import restore_canonical
from onecat_jax.loading.orbax.manifest import MANIFEST
from onecat_jax.sharding import Placement

UP = "layers.0.mlp.up_proj"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted(tmp_path_factory.mktemp("whole"), FOUR, Style(naming="modelopt"))[1]


@pytest.fixture
def out(whole: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(whole, tmp_path / "out"))


def edit(out: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = json.loads((out / MANIFEST).read_text())
    change(manifest)
    write_json(out / MANIFEST, manifest)


def refusals(out: Path) -> list[str]:
    """What loading it, reading it whole and restoring it say."""
    messages = []
    for attempt in (
        load,
        lambda out, n: host_tensors(out),
        lambda out, n: restore_canonical(out, Placement.of(n)),
    ):
        with pytest.raises(CheckpointError) as caught:
            attempt(out, 2)
        messages.append(str(caught.value))
    return messages


def assert_refused(out: Path, *words: str) -> None:
    for message in refusals(out):
        assert "\n" not in message
        for word in (*words, "again"):
            assert word in message


# Folders that don't hold a complete conversion


def test_a_missing_manifest(out: Path):
    (out / MANIFEST).unlink()
    assert_refused(out, str(out), f"no {MANIFEST}")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("format", "zip", ["format is 'zip'"]),
        ("version", 2, ["version is 2", "reads version 1", "onecat-jax"]),
        ("version", None, ["version is None"]),
        ("tensors", [], ["tensors is '[]'", "an object is needed"]),
        ("bytes", "1", ["bytes is '1'", "a whole number is needed"]),
        ("files", None, ["files is 'None'"]),
    ],
)
def test_a_manifest_of_another_kind(out: Path, field: str, value: Any, words: list[str]):
    edit(out, lambda manifest: manifest.update({field: value}))
    assert_refused(out, str(out / MANIFEST), *words)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda t: t.update(format="int4"), "format 'int4'"),
        (lambda t: t.update(shape=[-1, 64]), "shape is [-1, 64]"),
        (lambda t: t.update(shape=[64]), "a matrix is needed"),
        (lambda t: t.update(arrays={}), UP),
        (lambda t: t.pop("arrays"), "arrays is"),
        (lambda t: t["arrays"][f"{UP}.codes"].update(crc32="x"), "crc32 is 'x'"),
        (lambda t: t["arrays"][f"{UP}.codes"].update(shape=[128, 16]), f"{UP}.codes"),
        (lambda t: t["arrays"][f"{UP}.codes"].update(dtype="int8"), f"{UP}.codes"),
        (lambda t: t["arrays"].pop(f"{UP}.scales"), UP),
    ],
)
def test_a_manifest_with_a_wrong_record(out: Path, change: Callable[[Any], Any], word: str):
    edit(out, lambda manifest: change(manifest["tensors"][f"{UP}.weight"]))
    assert_refused(out, MANIFEST, word)


def test_a_dense_tensor_of_an_unknown_dtype(out: Path):
    edit(out, lambda m: m["tensors"]["norm.weight"]["arrays"]["norm.weight"].update(dtype="int3"))
    assert_refused(out, MANIFEST, "norm.weight", "int3")


def test_a_tensor_that_the_model_does_not_have(out: Path):
    record = {"format": "dense", "source": "BF16", "shape": [2], "arrays": {}}
    record["arrays"] = {"layers.7.new": {"dtype": "bfloat16", "shape": [2], "crc32": "0"}}
    edit(out, lambda manifest: manifest["tensors"].update({"layers.7.new": record}))
    for message in refusals(out):
        assert "layers.7.new" in message
        assert "is unknown" in message


def test_a_tensor_under_another_name(out: Path):
    """One that is a name of the same tensor in an export."""
    edit(out, lambda m: m["tensors"].update({"model.norm.weight": m["tensors"].pop("norm.weight")}))
    checkpoint = Checkpoint.open(out)
    assert "model.norm.weight" in checkpoint.tensors
    load(out, 2)


def test_a_tensor_that_is_missing(out: Path):
    edit(out, lambda manifest: manifest["tensors"].pop("norm.weight"))
    for message in refusals(out):
        assert "norm.weight is missing, needed [64]" in message


def test_a_tensor_that_the_arrays_lack(out: Path):
    """The manifest promises an MTP head, and the configuration asks for it."""
    _, without = converted(out.parent / "without", FOUR, Style(naming="modelopt", mtp=False))
    shutil.rmtree(out / "params")
    shutil.copytree(without / "params", out / "params")
    files = json.loads((without / MANIFEST).read_text())["files"]
    edit(out, lambda manifest: manifest.update(files=files))
    load(out, 1)  # which doesn't place the head
    for attempt in (host_tensors, lambda out: restore_canonical(out, Placement.of(1))):
        with pytest.raises(CheckpointError, match=r"array mtp\.\S+ can't be read: .*again"):
            attempt(out)


def test_arrays_of_another_shape(out: Path):
    """A folder put together from two conversions, each complete."""
    _, other = converted(out.parent / "other", SMALL, Style(naming="modelopt"))
    shutil.rmtree(out / "params")
    shutil.copytree(other / "params", out / "params")
    files = json.loads((other / MANIFEST).read_text())["files"]
    edit(out, lambda manifest: manifest.update(files=files))
    for message in refusals(out):
        assert re.search(r"array layers\.\S+ is \S+ \[[\d, ]+\], \S+ says \S+ \[", message)


# Files


def largest_file(out: Path) -> Path:
    return max(
        (path for path in (out / "params").rglob("*") if path.is_file()),
        key=lambda path: path.stat().st_size,
    )


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


@pytest.mark.parametrize("damage", [cut, lengthen, Path.unlink])
@pytest.mark.parametrize("file", ["data", "params/_METADATA", "params/manifest.ocdbt"])
def test_a_file_of_another_size(out: Path, file: str, damage: Callable[[Path], None]):
    path = largest_file(out) if file == "data" else out / file
    size = path.stat().st_size
    damage(path)
    assert_refused(out, str(path), str(size))


def test_a_changed_byte_is_found_by_check(out: Path, capsys: pytest.CaptureFixture[str]):
    """Loading reads parts, so it can't compare checksums of wholes; `check` reads wholes."""
    path = largest_file(out)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert main(["check", str(out)]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fail")]
    assert len(lines) == 2
    assert "1 fail, 0 warn" in lines[0]
    assert re.search(r"the checksum of \S+ is [0-9a-f]{8}, [0-9a-f]{8} was written", lines[1])


def test_check_of_a_whole_conversion_is_well(whole: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["check", str(whole)]) == 0
    assert "0 fail, 0 warn" in capsys.readouterr().out


def test_block_scales_that_are_no_numbers_are_refused_when_they_are_read(tmp_path: Path):
    """A conversion doesn't write them: here they are written with orbax, over a good one."""
    _, out = converted(tmp_path, SMALL, Style(naming="modelopt"))
    with ocp.StandardCheckpointer() as checkpointer:
        tree = checkpointer.restore(out / "params")
        scales = tree["layers"]["0"]["mlp"]["up_proj"]["scales"].copy()
        scales.view(np.uint8)[5, 1] = 0x7F
        tree["layers"]["0"]["mlp"]["up_proj"]["scales"] = scales
        shutil.rmtree(out / "params")
        checkpointer.save(out / "params", tree)
    edit(out, lambda manifest: manifest.update(files={}))
    with pytest.raises(
        CheckpointError, match=r"up_proj.weight \(scales\).* NaN .*row 5, block 1.*again"
    ):
        load(out, 1)


# Folders of somebody else


@pytest.mark.parametrize("inside", ["", "default", "params"])
def test_an_orbax_checkpoint_of_another_program(tmp_path: Path, inside: str):
    folder = tmp_path / "other"
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / inside, {"w": jnp.ones(4)})
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(folder)
    assert "orbax checkpoint that onecat convert didn't write" in str(caught.value)
    assert str(folder / inside) in str(caught.value)


def test_an_export_with_an_orbax_folder_in_it_is_an_export(tmp_path: Path):
    source = write_checkpoint(tmp_path / "source", SMALL)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(source / "state", {"w": jnp.ones(4)})
    assert "norm.weight" in host_tensors(source)
