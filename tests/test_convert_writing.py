"""Conversions that can't be done or don't finish leave nothing behind and touch nothing of anybody else; what the command says.

Oracle: the folder's content before and after, and the obstacle that the test itself put up: the message must name it.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

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
from onecat_jax.loading.orbax import writer
from onecat_jax.loading.orbax.convert import convert
from onecat_jax.loading.orbax.manifest import MANIFEST, UNFINISHED
from onecat_jax.loading.safetensors_file import SafetensorsFile

UP = "layers.0.mlp.up_proj"


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


def test_a_conversion_is_not_converted_again(tmp_path: Path):
    whole = converted(tmp_path / "whole", FOUR, Style(naming="modelopt"))[1]
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
