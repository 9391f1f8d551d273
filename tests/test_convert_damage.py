"""Folders that aren't a complete conversion are refused by name; conversions that can't be done or don't finish leave nothing.

Oracle: the damage that the test itself did: the message must name it and say what to do.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
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
    config_json,
    stored_tensors,
    write_checkpoint,
    write_json,
    write_tensors,
)
from conversions import FOUR, assert_same_leaves, converted, host_tensors, load
from damages import poke_bits

from onecat_jax.cli.main import main
from onecat_jax.errors import CheckpointError
from onecat_jax.loading import Checkpoint
from onecat_jax.loading.orbax import restore_canonical, writer
from onecat_jax.loading.orbax.convert import convert
from onecat_jax.loading.orbax.manifest import MANIFEST, UNFINISHED
from onecat_jax.loading.safetensors_file import SafetensorsFile
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


# Conversions that can't be done


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "source", SMALL)


def refused(source: Path | str, out: Path, **options: bool) -> str:
    with pytest.raises(CheckpointError) as caught:
        convert(source, out, **options)
    assert not out.with_name(f"{out.name}.partial").exists()
    return str(caught.value)


def test_a_folder_with_files_is_never_replaced(source: Path, tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("years")
    for force in (False, True):
        message = refused(source, out, force=force)
        assert f"{out} holds 1 files and isn't a converted checkpoint" in message
    assert (out / "thesis.txt").read_text() == "years"


def test_a_converted_checkpoint_is_replaced_by_force_only(source: Path, tmp_path: Path):
    other = write_checkpoint(tmp_path / "other", FOUR)
    out = convert(other, tmp_path / "out").folder
    assert "--force to replace it" in refused(source, out)
    assert len(host_tensors(out)) == len(host_tensors(other))
    convert(source, out, force=True)
    assert_same_leaves(load(out, 1), load(source, 1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out", "source"]


def test_folders_beside_it_are_left_alone(source: Path, tmp_path: Path):
    beside = tmp_path / "out.replaced"
    beside.mkdir()
    (beside / "thesis.txt").write_text("years")
    for force in (False, True):
        convert(source, tmp_path / "out", force=force)
    assert (beside / "thesis.txt").read_text() == "years"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.replaced", "source"]


def test_an_empty_folder_is_filled_and_missing_parents_are_made(source: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "empty", tmp_path / "a" / "b"):
        assert convert(source, out).folder == out
        assert Checkpoint.open(out).tensors


def test_a_link_stays_and_what_it_points_to_is_written(source: Path, tmp_path: Path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.mkdir()
    link.symlink_to("target")
    for force in (False, True):
        convert(source, link, force=force)
        assert Checkpoint.open(link).tensors
    assert link.is_symlink()
    assert not target.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "source", "target"]


def test_a_file_is_not_a_folder(source: Path, tmp_path: Path):
    (tmp_path / "file").write_text("x")
    assert "is a file; give the name of a folder" in refused(source, tmp_path / "file")
    assert f"{tmp_path / 'file'} can't be read or written" in refused(
        source, tmp_path / "file" / "out"
    )


def test_a_conversion_is_not_converted_again(whole: Path, tmp_path: Path):
    assert f"{whole} is converted already" in refused(whole, tmp_path / "again")


def test_too_little_space_is_refused_before_anything_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    usage = type(shutil.disk_usage(tmp_path))(2**40, 2**40, 3 * 2**20)
    monkeypatch.setattr("onecat_jax.loading.orbax.output.shutil.disk_usage", lambda _: usage)
    monkeypatch.setattr(SafetensorsFile, "array", lambda *_: pytest.fail("a weight was read"))
    message = refused(source, tmp_path / "out")
    assert f"{tmp_path} has 3.0 MiB free" in message
    assert re.search(r"1[67]\.\d MiB are needed", message)
    assert not (tmp_path / "out").exists()


def test_a_bad_scale_ends_the_conversion_and_leaves_nothing(tmp_path: Path):
    style = Style(naming="modelopt")
    tensors = stored_tensors(SMALL, style)
    poke_bits(f"model.{UP}.weight_scale", 0xFF)(tensors)
    source = tmp_path / "source"
    source.mkdir()
    write_json(source / "config.json", config_json(SMALL, style))
    write_tensors(source, tensors)
    said = refused(source, tmp_path / "out")
    assert (
        f"model.{UP}.weight_scale (model.safetensors, F8_E4M3 [96, 4]) holds 1 block scales" in said
    )
    assert not (tmp_path / "out").exists()


def test_a_disk_that_fills_up_ends_the_conversion(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The storage library is told to write into a folder that doesn't take it."""
    written = writer.type_handlers.get_json_tspec_write

    def nowhere(*args: Any, **kwargs: Any) -> Any:
        spec = written(*args, **kwargs)
        spec["kvstore"] = {"driver": "file", "path": "/proc/nowhere/"}
        return spec

    monkeypatch.setattr(writer.type_handlers, "get_json_tspec_write", nowhere)
    message = refused(source, tmp_path / "out")
    assert re.search(r"array \S+ can't be written: .*; is the disk full", message)


# Conversions that don't finish

_SLOW = """
import time
from onecat_jax.loading.orbax import convert, writer
write = writer._LeafHandler._write
async def slowly(self, leaf, info):
    await write(self, leaf, info)
    print(leaf.array.name, flush=True)
    time.sleep(0.05)
writer._LeafHandler._write = slowly
writer._WINDOW = 1
convert.convert({source!r}, {out!r})
"""


def begin(source: Path, out: Path) -> subprocess.Popen[str]:
    """A conversion in another process, which has written a few arrays and will take long for the rest."""
    code = _SLOW.format(source=str(source), out=str(out))
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for _ in range(5):
        assert process.stdout.readline()
    return process


def test_a_killed_conversion_leaves_nothing_that_loads_and_a_second_one_succeeds(
    source: Path, tmp_path: Path
):
    out = tmp_path / "out"
    with begin(source, out) as process:
        os.kill(process.pid, signal.SIGKILL)
    partial = tmp_path / "out.partial"
    assert not out.exists()
    assert (partial / UNFINISHED).exists()
    with pytest.raises(CheckpointError, match="didn't finish; run onecat convert again"):
        Checkpoint.open(partial)
    convert(source, out)
    assert_same_leaves(load(out, 1), load(source, 1))
    assert not partial.exists()


def test_two_conversions_to_one_place_do_not_meet(source: Path, tmp_path: Path):
    out = tmp_path / "out"
    with begin(source, out) as process:
        with pytest.raises(CheckpointError, match="another conversion is writing"):
            convert(source, out)
        process.kill()


def test_an_interrupted_conversion_removes_what_it_wrote(source: Path, tmp_path: Path):
    with begin(source, tmp_path / "out") as process:
        process.send_signal(signal.SIGINT)
    assert process.returncode != 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_a_folder_in_the_way_of_the_temporary_one_is_kept(source: Path, tmp_path: Path):
    partial = tmp_path / "out.partial"
    partial.mkdir()
    (partial / "mine.txt").write_text("x")
    with pytest.raises(CheckpointError, match="holds other files; move it away"):
        convert(source, tmp_path / "out")
    assert (partial / "mine.txt").read_text() == "x"


# The command


def test_the_command_says_what_it_wrote(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["convert", str(source), str(tmp_path / "out"), "--json"]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert err == ""
    assert result["path"] == str(tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert result["tensors"] == len(manifest["tensors"])
    assert result["bytes"] == manifest["bytes"]
    assert main(["convert", str(source), str(tmp_path / "out"), "--force"]) == 0
    text = capsys.readouterr().out
    assert f"{result['tensors']} tensors in {result['arrays']} arrays" in text


def test_a_refusal_is_one_sentence_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["convert", str(tmp_path / "none"), str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("onecat: ")
    assert err.count("\n") == 1


def test_orbax_is_silent_in_a_pipe(source: Path, tmp_path: Path):
    """Nothing but the result, while converting and while loading."""
    code = (
        "import sys\nfrom onecat_jax.cli.main import main\n"
        f"code = main(['convert', {str(source)!r}, {str(tmp_path / 'out')!r}])\n"
        "from onecat_jax.loading.orbax import restore_canonical\n"
        "from onecat_jax.sharding import Placement\n"
        f"restore_canonical({str(tmp_path / 'out')!r}, Placement.of(1))\nsys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
