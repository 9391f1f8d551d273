"""`onecat info` and `onecat check`: what they say and how they end.

Oracle: the damage that the test itself did, and sizes computed here from the geometry.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import (
    SMALL,
    Style,
    config_json,
    stored_tensors,
    write_json,
    write_tensors,
)
from damages import poke, poke_bits

from onecat_jax.cli import check, info
from onecat_jax.errors import EngineError, OnecatError

UP = "model.layers.0.mlp.up_proj"


def arguments(module: Any, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    module.configure(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize("module", [info, check])
def test_commands_raise_a_user_error_for_a_bad_model(tmp_path: Path, module: Any):
    args = arguments(module, str(tmp_path / "none"))
    with pytest.raises(OnecatError, match="doesn't exist"):
        args.run(args)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-model-len", "0"], "max_model_len is 0"),
        (["--gpu-memory-utilization", "1.5"], "gpu_memory_utilization is 1.5"),
        (["--dtype", "int4"], "dtype is 'int4'"),
    ],
)
def test_info_refuses_a_bad_option(words: list[str], message: str):
    args = arguments(info, "tiny", *words)
    with pytest.raises(EngineError, match=message):
        args.run(args)


def test_check_counts_values_that_are_not_finite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    tensors = stored_tensors(SMALL)
    poke(f"{UP}.weight", np.nan)(tensors)
    poke("model.norm.weight", np.inf)(tensors)
    poke("lm_head.weight", 1e5)(tensors)
    write_json(tmp_path / "config.json", config_json(SMALL))
    write_tensors(tmp_path, tensors)
    args = arguments(check, str(tmp_path), "--json")
    assert args.run(args) == 1
    report = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in report["checks"]}
    assert not report["ok"]
    assert "2 fail, 1 warn" in rows["checkpoint"]["found"]
    assert "holds 1 values that aren't finite" in rows["layers.0.mlp.up_proj.weight"]["found"]
    assert rows["lm_head.weight"]["status"] == "warn"


def test_check_finds_bad_scales(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    style = Style(naming="modelopt")
    tensors = stored_tensors(SMALL, style)
    poke_bits(f"{UP}.weight_scale", 0x7F)(tensors)
    write_json(tmp_path / "config.json", config_json(SMALL, style))
    write_tensors(tmp_path, tensors)
    args = arguments(check, str(tmp_path))
    assert args.run(args) == 1
    out = capsys.readouterr().out
    assert "1 fail, 0 warn" in out
    assert "the first is NaN" in out


def test_check_of_a_good_installation_and_model(capsys: pytest.CaptureFixture[str]):
    args = arguments(check, "tiny")
    assert args.run(args) == 0
    out = capsys.readouterr().out
    assert "123 tensors, 0 fail, 0 warn" in out
    assert all(word in out for word in ("python", "jaxlib", "extension", "route linear nvfp4"))


def test_info_reports_the_embedded_model(capsys: pytest.CaptureFixture[str]):
    args = arguments(info, "tiny", "--json", "--max-model-len", "1024")
    assert args.run(args) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["architecture"] == "Qwen3_5ForCausalLM"
    assert report["parameters"] + report["mtp_parameters"] == pytest.approx(34.4e6, rel=0.01)
    assert report["quantization"]["algorithm"] == "NVFP4"
    assert sum(group["formats"].get("nvfp4", 0) for group in report["groups"]) == 57
    assert [(bound["gib"], bound["ranks"]) for bound in report["v100"]] == [
        (size, ranks) for size in (16, 32) for ranks in (1, 2, 4)
    ]
    assert report["v100"][0]["max_model_len_one_request"] == 8192
    assert report["plan"]["fits"]
    assert report["plan"]["max_model_len"] == 1024


def test_info_text_holds_every_group_and_both_bounds(capsys: pytest.CaptureFixture[str]):
    args = arguments(info)
    assert args.run(args) == 0
    out = capsys.readouterr().out
    for word in ("MLP", "GDN state", "KV cache", "V100 16 GB", "V100 32 GB", "plan on cpu:0"):
        assert word in out


def test_info_reports_a_model_that_does_not_fit(capsys: pytest.CaptureFixture[str]):
    args = arguments(info, "tiny", "--json", "--gpu-memory-utilization", "1e-9")
    assert args.run(args) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert not plan["fits"]
    assert "doesn't fit" in plan["reason"]
