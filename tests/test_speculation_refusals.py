"""What speculative decoding refuses: one sentence with what was found and what is needed, before a weight is read.

Oracle: the damage that the test itself did. Single fields of a draft's config.json are the matter of test_dflash_config.py,
damaged files and tensors in general that of test_bad_checkpoints.py.
"""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import onecat_jax
from onecat_jax import LLM, SamplingParams
from onecat_jax.cli.main import main
from onecat_jax.config import EngineConfig
from onecat_jax.errors import EngineError, OnecatError, RequestError
from onecat_jax.speculation.config import MAX_DRAFTS, SpeculativeConfig

TINY = Path(onecat_jax.__file__).parent / "assets" / "tiny"
HUGE = 10**5000  # more digits than Python prints
ODD: tuple[Any, ...] = (
    None, True, -1, 2.5, "x", "", [], [1], {}, b"x", HUGE, math.nan, math.inf, np.array([1, 2]), object(),
)  # fmt: skip


class Loaded(AssertionError):
    """Weights were about to be read."""


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(*_: object, **__: object) -> None:
        raise Loaded

    monkeypatch.setattr("onecat_jax.engine_builder.load_model", loaded)


def refusal(speculative: Any, model: str = "tiny", **arguments: Any) -> str:
    with pytest.raises(OnecatError) as caught:
        LLM(model, speculative_config=speculative, max_model_len=64, **arguments)
    message = str(caught.value)
    assert len(message) < 400
    return message


# The configuration


@pytest.mark.parametrize("value", [v for v in ODD if v is not None], ids=lambda v: type(v).__name__)
def test_something_else_than_an_object_is_refused(value: Any):
    with pytest.raises(EngineError, match=r"^speculative_config.* is needed"):
        EngineConfig(speculative_config=value)


@pytest.mark.parametrize(
    ("method", "key", "legal"),
    [
        ("mtp", "method", ()),
        ("mtp", "num_speculative_tokens", (None,)),
        ("mtp", "min_acceptance_length", (2.5,)),
        ("mtp", "kv_cache_dtype", ()),
        ("mtp", "draft_sample_method", ()),
        ("ngram", "prompt_lookup_min", (None,)),
        ("ngram", "prompt_lookup_max", (None,)),
        ("dflash", "adaptive_lookup", (True,)),
        ("dflash", "model", (None, "x")),
        ("dflash", "revision", (None,)),
    ],
)
def test_values_of_every_wrong_kind_are_named(method: str, key: str, legal: tuple):
    for value in ODD:
        if any(value is each or (type(value), value) == (type(each), each) for each in legal):
            continue
        with pytest.raises(EngineError, match=rf"^speculative_config: {key} is ") as caught:
            EngineConfig(speculative_config={"method": method, key: value})
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("speculative", "message"),
    [
        ({}, "has no method; one of dflash, mtp, ngram"),
        ({"method": "eagle"}, "method is 'eagle'; it must be one of dflash, mtp, ngram"),
        ({"method": "mtp", "k": 3}, "unknown key 'k'; known: method"),
        ({"method": "mtp", 1: 3}, "unknown key '1'"),
        ({"method": "mtp", "num_speculative_tokens": 16}, "a whole number from 1 to 15"),
        ({"method": "mtp", "min_acceptance_length": 16.5}, r"must lie in \[0, 16\]"),
        ({"method": "mtp", "model": "x"}, "model has no meaning for method 'mtp'"),
        ({"method": "ngram", "adaptive_lookup": True}, "adaptive_lookup has no meaning"),
        ({"method": "mtp", "kv_cache_dtype": "fp8_e4m3"}, "kv_cache_dtype has no meaning"),
        ({"method": "dflash", "prompt_lookup_max": 3}, "prompt_lookup_max has no meaning"),
        ({"method": "dflash", "revision": "main"}, "revision is 'main' but there is no model"),
        (
            {"method": "ngram", "prompt_lookup_min": 6, "prompt_lookup_max": 3},
            "prompt_lookup_min is 6, prompt_lookup_max 3",
        ),
    ],
    ids=str,
)
def test_what_has_no_meaning_is_refused(speculative: dict, message: str):
    with pytest.raises(EngineError, match=message):
        EngineConfig(speculative_config=speculative)


def test_a_draft_may_be_a_path():
    config = SpeculativeConfig.from_mapping({"method": "dflash", "model": TINY / "dflash2"})
    assert config.model == str(TINY / "dflash2")


@pytest.mark.parametrize(("block", "drafts"), [(2, 1), (8, 7), (16, 15), (17, 15), (300, 15)])
def test_a_wide_block_gives_as_many_drafts_as_rounds_hold(block: int, drafts: int):
    assert SpeculativeConfig("dflash").drafts(block - 1) == drafts <= MAX_DRAFTS


@pytest.mark.parametrize("name", ["dtype", "kv_cache_dtype", "gpu_memory_utilization", "strict"])
def test_engine_arguments_of_every_wrong_kind_are_named(name: str):
    for value in ODD:
        if name == "strict" and isinstance(value, bool):
            continue
        with pytest.raises(EngineError, match=f"^{name} is "):
            EngineConfig(**{name: value})


@pytest.mark.parametrize("size", ["max_model_len", "max_num_seqs", "block_size"])
def test_sizes_beyond_int32_are_refused(size: str):
    for value in (2**31, HUGE):
        with pytest.raises(EngineError, match=f"^{size} is .*from .* to 2147483647"):
            EngineConfig(**{size: value})


@pytest.mark.parametrize(
    "given",
    [5, "x", [5], [()], ["ab"], np.array([1, 2]), {"k": 1}, {1: 1},
     *[{"num_speculative_tokens": v} for v in (None, -1, 16, 1.0, "3", True, HUGE)]],
    ids=lambda value: str(type(value).__name__),
)  # fmt: skip
def test_a_request_asks_for_drafts_by_a_whole_number(given: Any):
    with pytest.raises(RequestError, match=r"^extra_args"):
        SamplingParams(extra_args=given)


# The command line


@pytest.mark.parametrize(
    "text",
    ["{", "", "null", "5", "NaN", "[]", "1" * 5000, '{"a":' * 100_000,
     '{"method":"mtp","num_speculative_tokens":' + "1" * 5000 + "}"],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_json_that_is_none_ends_the_command(text: str, capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit) as ended:
        main(["generate", "x", "--speculative-config", text])
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "argument --speculative-config: " in last
    assert "is no JSON" in last
    assert len(last) < 300


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"method": "mtp", "min_acceptance_length": math.nan}, "min_acceptance_length is nan"),
        ({"method": "dflash", "model": "/no/where"}, "/no/where doesn't exist"),
        ({"method": "dflash", "num_speculative_tokens": 8}, "makes 7 in a round: ask for 7"),
    ],
    ids=str,
)
def test_a_refusal_is_one_line_and_exit_code_2(
    value: dict, message: str, capsys: pytest.CaptureFixture
):
    assert main(["generate", "x", "--speculative-config", json.dumps(value)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


# Checkpoints


def draft(
    folder: Path, config: Any = (), tensors: Callable[[dict], object] = lambda tensors: None
) -> dict[str, Any]:
    """A changed copy of the embedded draft, as a speculative config."""
    found = json.loads((TINY / "dflash2" / "config.json").read_text(encoding="utf-8"))
    for name, value in dict(config).items():
        (found["dflash_config"] if name in found["dflash_config"] else found)[name] = value
    weights = load_file(TINY / "dflash2" / "model.safetensors")
    tensors(weights)
    (folder / "config.json").write_text(json.dumps(found))
    save_file(weights, folder / "model.safetensors")
    return {"method": "dflash", "model": str(folder)}


def test_the_unchanged_copy_is_loaded(tmp_path: Path):
    with pytest.raises(Loaded):
        LLM("tiny", speculative_config=draft(tmp_path), max_model_len=64)


@pytest.mark.parametrize(
    ("config", "numbers"),
    [
        ({"hidden_size": 128}, ("hidden_size is 128", "384")),
        ({"vocab_size": 4096}, ("vocab_size is 4096", "8192")),
        ({"num_target_layers": 9}, ("num_target_layers is 9", "8 layers")),
        ({"target_layer_ids": [1, 3, 5, 8]}, ("target layers [8]", "0 to 7")),
        ({"mask_token_id": None}, ("no mask_token_id",)),
        ({"mask_token_id": 8192}, ("mask_token_id is 8192", "0 to 8191")),
        ({"block_size": 1}, ("conv_kernel_size 2", "block_size 1")),
        ({"num_hidden_layers": 2}, ("3 layers", "num_hidden_layers is 2")),
        ({"architectures": 5}, ("architectures is 5", "list of names")),
        ({"layer_types": [[], {}, 1]}, ("layer_types", "list of names")),
    ],
    ids=str,
)
def test_a_draft_of_another_target_is_refused_with_both_numbers(
    tmp_path: Path, config: dict, numbers: tuple[str, ...]
):
    message = refusal(draft(tmp_path, config))
    assert all(number in message for number in numbers), message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("fc.weight"), "fc.weight is missing"),
        (lambda t: t.update(extra=t["norm.weight"]), "extra (model.safetensors, BF16 [384]) is unknown"),
        (lambda t: t.update({"fc.weight": t["fc.weight"][:-1]}), "[383, 1536]) has a wrong shape"),
        (lambda t: t.update({"fc.weight": t["fc.weight"].astype(np.float64)}), "F64"),
    ],
    ids=["missing", "extra", "shape", "dtype"],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, change: Callable, message: str):
    assert message in refusal(draft(tmp_path, tensors=change))


def test_a_cut_off_draft_is_named(tmp_path: Path):
    speculative = draft(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert f"{file} is cut off" in refusal(speculative)


def test_target_and_draft_mixed_up_are_told_apart(tmp_path: Path):
    as_draft = {"method": "dflash", "model": str(TINY / "target")}
    assert "implemented: DFlashDraftModel, DFlash2DraftModel" in refusal(as_draft)
    as_target = refusal(None, str(TINY / "dflash2"))
    assert "is a draft" in as_target
    assert "speculative_config" in as_target


def test_a_draft_must_be_named_for_a_target_of_ones_own(tmp_path: Path):
    shutil.copytree(TINY / "target", tmp_path / "own")
    message = refusal({"method": "dflash"}, str(tmp_path / "own"))
    assert "needs the draft checkpoint as 'model'" in message


def without(content: bytes, prefix: str) -> bytes:
    """A safetensors file without the tensors of a name, written by hand: the package doesn't know all dtypes of NumPy."""
    size = 8 + int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8:size]), b""
    kept = {name: entry for name, entry in header.items() if not name.startswith(prefix)}
    assert len(kept) < len(header)
    for name, entry in kept.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            entry["data_offsets"] = [len(data), len(data) + end - begin]
            data += content[size + begin : size + end]
    head = json.dumps(kept).encode()
    return len(head).to_bytes(8, "little") + head + data


def test_mtp_needs_a_head(tmp_path: Path):
    folder = tmp_path / "headless"
    shutil.copytree(TINY / "target", folder)
    file = folder / "model.safetensors"
    file.write_bytes(without(file.read_bytes(), "mtp."))
    assert "MTP head of the checkpoint, but it has none" in refusal({"method": "mtp"}, str(folder))
    with pytest.raises(Loaded):
        LLM(str(folder), max_model_len=64)


def test_ranks_that_do_not_divide_a_draft_are_refused():
    assert "tensor_parallel_size is 3" in refusal({"method": "dflash"}, tensor_parallel_size=3)
