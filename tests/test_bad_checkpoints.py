"""Every refusal of a checkpoint, by its message, and how the command line shows it.

Oracle: the damage that the test itself did: the message must name it, with what was found and what
is needed.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import (
    SMALL,
    Style,
    config_json,
    tensor_specs,
    write_checkpoint,
    write_json,
)

from onecat_jax.errors import CheckpointError, ModelConfigError
from onecat_jax.loading import Checkpoint, load_tensors, locate
from onecat_jax.models.registry import resolve, supported_architectures

Tensors = dict[str, np.ndarray]
INDEX = "model.safetensors.index.json"
UP = "model.layers.0.mlp.up_proj"
FP8 = ml_dtypes.float8_e4m3fn


def load(folder: Path) -> None:
    load_tensors(Checkpoint.open(folder), tensor_specs(SMALL))


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    return str(caught.value)


# What is no checkpoint at all


def test_a_missing_folder(tmp_path: Path):
    message = refusal(tmp_path / "none")
    assert f"{tmp_path / 'none'} doesn't exist" in message
    assert "config.json" in message


def test_a_file_instead_of_a_folder(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    assert "is a file; give the folder that holds it" in refusal(tmp_path / "file")


@pytest.mark.parametrize(
    ("content", "found"), [((), "empty"), (("a.bin", "b.txt"), "a.bin, b.txt")]
)
def test_a_folder_without_config(tmp_path: Path, content: tuple[str, ...], found: str):
    for name in content:
        (tmp_path / name).write_text("x")
    message = refusal(tmp_path)
    assert "is no checkpoint: there is no config.json" in message
    assert "*.safetensors" in message
    assert found in message


def test_a_folder_without_weights(tmp_path: Path):
    write_json(tmp_path / "config.json", config_json(SMALL))
    message = refusal(tmp_path)
    assert "holds no weights" in message
    assert "found config.json" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "isn't valid JSON"),
        ("[1]", "holds a JSON list; an object is needed"),
        ("\xff", "JSON"),
    ],
)
@pytest.mark.parametrize("file", ["config.json", "generation_config.json", INDEX])
def test_a_broken_json_file_is_named(tmp_path: Path, file: str, text: str, message: str):
    write_checkpoint(tmp_path)
    (tmp_path / file).write_bytes(text.encode("latin-1"))
    found = refusal(tmp_path)
    assert str(tmp_path / file) in found
    assert message in found


def test_an_unsupported_architecture_lists_the_supported_ones():
    with pytest.raises(ModelConfigError, match="LlamaForCausalLM isn't implemented") as caught:
        resolve({"architectures": ["LlamaForCausalLM"], "model_type": "llama"})
    assert all(name in str(caught.value) for name in supported_architectures())


@pytest.mark.parametrize("config", [{}, {"architectures": 3}, {"model_type": ["x"]}])
def test_a_config_that_names_no_architecture(config: dict[str, Any]):
    with pytest.raises(ModelConfigError, match="architecture none"):
        resolve(config)


def test_an_architecture_is_found_by_model_type_too():
    assert resolve({"model_type": "qwen3_5_text"}).name == "qwen3_5"


@pytest.mark.parametrize("model", ["", "a/b/c", "/none/here", "no-such-model", "x" * 5000, "a\0b"])
def test_only_owner_and_name_reach_the_network(model: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("onecat_jax.loading.hub._download", lambda name: pytest.fail(name))
    if model == "":
        assert locate(model) == Path(".")
        return
    with pytest.raises(CheckpointError, match="doesn't exist"):
        locate(model)


def test_a_failed_download_is_one_sentence(monkeypatch: pytest.MonkeyPatch):
    def offline(*_: object, **__: object) -> str:
        raise OSError("no route to host\nand a second line")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(CheckpointError) as caught:
        locate("owner/name")
    message = str(caught.value)
    assert "owner/name is no local folder" in message
    assert "no route to host; check the name" in message
    assert "\n" not in message


# The index


def edit_index(folder: Path, change: Callable[[dict[str, str]], None]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    write_json(folder / INDEX, index)


def test_an_index_that_names_a_missing_file(tmp_path: Path):
    write_checkpoint(tmp_path, style=Style(shards=3))
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    message = refusal(tmp_path)
    assert f"{tmp_path / INDEX} names 3 files, 1 of them missing" in message
    assert "model-00002-of-00003.safetensors" in message


def test_a_file_that_lacks_what_the_index_promises(tmp_path: Path):
    write_checkpoint(tmp_path, style=Style(shards=2))
    edit_index(tmp_path, lambda m: m.update({"new.weight": "model-00001-of-00002.safetensors"}))
    message = refusal(tmp_path)
    assert "model-00001-of-00002.safetensors lacks tensor 'new.weight'" in message


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/passwd", "", 3, None, "a/b.safetensors"]
)
def test_an_index_may_name_files_of_its_folder_only(tmp_path: Path, name: object):
    write_checkpoint(tmp_path, style=Style(shards=2))
    edit_index(tmp_path, lambda m: m.update({"new.weight": name}))  # type: ignore[dict-item]
    assert "a file in the same folder is needed" in refusal(tmp_path)


@pytest.mark.parametrize("content", [{}, {"weight_map": {}}, {"weight_map": [1]}])
def test_an_index_without_a_map(tmp_path: Path, content: dict[str, object]):
    write_checkpoint(tmp_path)
    write_json(tmp_path / INDEX, content)
    assert "has no weight_map" in refusal(tmp_path)


def test_one_name_in_two_files_without_an_index(tmp_path: Path):
    write_checkpoint(tmp_path)
    content = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").unlink()
    for name in ("a.safetensors", "b.safetensors"):
        (tmp_path / name).write_bytes(content)
    message = refusal(tmp_path)
    assert "is in a.safetensors and in b.safetensors" in message


# Damaged files; the reader's own tests know more kinds


def cut(content: bytes) -> bytes:
    return content[:-100]


def cut_header(content: bytes) -> bytes:
    return content[:1000]


def flip_header(content: bytes) -> bytes:
    return content[:8] + b"\0" + content[9:]


def longer(content: bytes) -> bytes:
    return content + b"\0\0"


def other_length(content: bytes) -> bytes:
    return (int.from_bytes(content[:8], "little") - 8).to_bytes(8, "little") + content[8:]


@pytest.mark.parametrize("damage", [cut, cut_header, flip_header, longer, other_length])
def test_a_damaged_file_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]):
    write_checkpoint(tmp_path, style=Style(shards=2))
    path = tmp_path / "model-00002-of-00002.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    assert str(path) in refusal(tmp_path)
