"""Tensors that don't fit the model or contradict the quantisation record, refused by name.

Oracle: the damage that the test itself did.
"""

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
    stored_tensors,
    tensor_specs,
    write_checkpoint,
    write_json,
    write_tensors,
)
from damages import Tensors, cast, drop, poke, poke_bits, put, renamed, rows_lost

from onecat_jax.errors import CheckpointError
from onecat_jax.loading import Checkpoint, load_tensors

UP = "model.layers.0.mlp.up_proj"
FP8 = ml_dtypes.float8_e4m3fn


def load(folder: Path) -> None:
    load_tensors(Checkpoint.open(folder), tensor_specs(SMALL))


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    return str(caught.value)


# Tensors that don't fit the model

STYLES = {
    "dense": Style(),
    "modelopt": Style(naming="modelopt"),
    "compressed-tensors": Style(naming="compressed-tensors"),
}


A_LOG = "model.layers.0.linear_attn.A_log"
DAMAGES: dict[str, tuple[str, Callable[[Tensors], None], str]] = {
    "missing linear": (
        "dense",
        drop(f"{UP}.weight"),
        "mlp.up_proj.weight is missing, needed [96, 64]",
    ),
    "missing vector": ("dense", drop(A_LOG), "layers.0.linear_attn.A_log is missing, needed [4]"),
    "missing head": ("dense", drop("lm_head.weight"), "lm_head.weight is missing, needed [96, 64]"),
    "half an MTP head": (
        "dense",
        drop("mtp.fc.weight"),
        "mtp.fc.weight is missing, needed [64, 128]",
    ),
    "extra tensor": (
        "dense",
        put("model.layers.0.bias", np.ones(3)),
        "layers.0.bias (model.safetensors, F64 [3]) is unknown",
    ),
    "extra layer": (
        "dense",
        put("model.layers.9.norm.weight", np.ones(3)),
        "model.layers.9.norm.weight",
    ),
    "wrong shape": (
        "dense",
        rows_lost(f"{UP}.weight"),
        "BF16 [95, 64]) has a wrong shape, needed [96, 64]",
    ),
    "wrong vector shape": ("dense", rows_lost(A_LOG), "BF16 [3]) has a wrong shape, needed [4]"),
    "wrong dtype": (
        "dense",
        cast("model.norm.weight", np.int32),
        "I32 [64]) has a wrong dtype, needed BF16, F16, F32",
    ),
    "float64": ("dense", cast(f"{UP}.weight", np.float64), "F64 [96, 64]) has a wrong dtype"),
    "two names for one": ("dense", put("norm.weight", np.ones(64)), "both mean norm.weight"),
    "scales beside dense": (
        "dense",
        put(f"{UP}.weight_scale", np.ones(3)),
        "is dense, yet quantisation scales lie beside it",
    ),
    "FP8": (
        "dense",
        cast(f"{UP}.weight", FP8),
        f"{UP}.weight (model.safetensors, F8_E4M3 [96, 64]) is FP8, its weight_scale is missing, needed BF16 or F16 or F32 "
        "[] or [1]",
    ),
    "block FP8": (
        "dense",
        put(f"{UP}.weight_scale_inv", np.ones((1, 1))),
        f"is dense, yet quantisation scales lie beside it: {UP}.weight_scale_inv",
    ),
    "AWQ": (
        "dense",
        renamed(f"{UP}.weight", f"{UP}.qweight"),
        "up_proj.qweight (model.safetensors, BF16 [96, 64]) has a wrong dtype, needed I32 [64, 12]",
    ),
    "Quark INT4": (
        "dense",
        cast(f"{UP}.weight", np.int32),
        "I32 [96, 64]) has a wrong shape, needed I32 [64, 12]",
    ),
    "MXFP4": (
        "compressed-tensors",
        cast(f"{UP}.weight_scale", np.uint8),
        "up_proj.weight_packed (model.safetensors, U8 [96, 32]) is MXFP4, which isn't",
    ),
    "packed INT4": (
        "compressed-tensors",
        cast(f"{UP}.weight_packed", np.int32),
        "I32 [96, 32]) has a wrong shape, needed I32 [96, 8]",
    ),
    "no block scales": (
        "modelopt",
        drop(f"{UP}.weight_scale"),
        "is NVFP4, its weight_scale is missing, needed F8_E4M3 [96, 4]",
    ),
    "no multiplier": (
        "modelopt",
        drop(f"{UP}.weight_scale_2"),
        "its weight_scale_2 is missing, needed F32 [] or [1]",
    ),
    "no divisor": (
        "compressed-tensors",
        drop(f"{UP}.weight_global_scale"),
        "its weight_global_scale is missing",
    ),
    "divisor under codes of the other naming": (
        "modelopt",
        renamed(f"{UP}.weight_scale_2", f"{UP}.weight_global_scale"),
        "its weight_scale_2 is missing",
    ),
    "both namings": (
        "modelopt",
        put(f"{UP}.weight_global_scale", np.ones(1, np.float32)),
        "of another format lies beside it",
    ),
    "packed rows": (
        "modelopt",
        rows_lost(f"{UP}.weight"),
        "U8 [95, 32]) has a wrong shape, needed U8 [96, 32]",
    ),
    "scale rows": (
        "modelopt",
        rows_lost(f"{UP}.weight_scale"),
        "F8_E4M3 [95, 4]) has a wrong shape, needed F8_E4M3 [96, 4]",
    ),
    "scale dtype": (
        "modelopt",
        cast(f"{UP}.weight_scale", np.float32),
        "F32 [96, 4]) has a wrong dtype, needed F8_E4M3 [96, 4]",
    ),
    "multiplier per row": (
        "modelopt",
        put(f"{UP}.weight_scale_2", np.ones(96, np.float32)),
        "F32 [96]) has a wrong shape, needed F32 [] or [1]",
    ),
    "multiplier in BF16": (
        "modelopt",
        cast(f"{UP}.weight_scale_2", ml_dtypes.bfloat16),
        "has a wrong dtype, needed F32 [] or [1]",
    ),
    "quantised embedding": (
        "modelopt",
        cast("model.embed_tokens.weight", np.uint8),
        "has a wrong dtype, needed BF16",
    ),
    "multiplier zero": (
        "modelopt",
        put(f"{UP}.weight_scale_2", np.asarray(np.float32(0))),
        "weight_scale_2 (model.safetensors, F32 []) is 0.0; a finite number above zero",
    ),
    "multiplier negative": (
        "modelopt",
        put(f"{UP}.weight_scale_2", np.asarray(np.float32(-1))),
        "is -1.0; a finite",
    ),
    "multiplier NaN": (
        "modelopt",
        put(f"{UP}.weight_scale_2", np.asarray(np.float32("nan"))),
        "is nan; a finite",
    ),
    "divisor zero": (
        "compressed-tensors",
        poke(f"{UP}.weight_global_scale", 0),
        "weight_global_scale (model.safetensors, F32 [1]) is 0.0; a finite",
    ),
    "divisor infinite": (
        "compressed-tensors",
        poke(f"{UP}.weight_global_scale", np.inf),
        "is inf; a finite",
    ),
    "divisor too small": (
        "compressed-tensors",
        poke(f"{UP}.weight_global_scale", 1e-45),
        "whose inverse isn't a finite float32",
    ),
    "block scale NaN": (
        "modelopt",
        poke_bits(f"{UP}.weight_scale", 0x7F),
        "the first is NaN (0x7f) at row 95, block 3",
    ),
    "block scale other NaN": (
        "modelopt",
        poke_bits(f"{UP}.weight_scale", 0xFF),
        "the first is NaN (0xff)",
    ),
    "block scale negative": (
        "compressed-tensors",
        poke_bits(f"{UP}.weight_scale", 0x81),
        "the first is negative (0x81)",
    ),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_tensor_that_does_not_fit_is_named(tmp_path: Path, kind: str):
    naming, damage, message = DAMAGES[kind]
    style = STYLES[naming]
    tensors = stored_tensors(SMALL, style)
    damage(tensors)
    write_json(tmp_path / "config.json", config_json(SMALL, style))
    write_tensors(tmp_path, tensors)
    assert message in refusal(tmp_path)


def test_many_bad_tensors_give_one_error_with_five_of_them(tmp_path: Path):
    write_json(tmp_path / "config.json", config_json(SMALL))
    tensors = stored_tensors(SMALL)
    for name in [n for n in tensors if ".mlp." in n]:
        del tensors[name]
    write_tensors(tmp_path, tensors)
    message = refusal(tmp_path)
    assert "9 of its tensors don't fit the model" in message
    assert message.count("is missing") == 5
    assert message.endswith("and 4 more")


# Contradictions with the quantisation record


def refusal_with_record(folder: Path, style: Style, record: dict[str, Any]) -> str:
    write_checkpoint(folder, SMALL, style)
    write_json(folder / "config.json", config_json(SMALL) | {"quantization_config": record})
    return refusal(folder)


EXCLUDED = ["lm_head", "*.in_proj_a", "*.in_proj_b", "mtp.fc"]
NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": EXCLUDED}
GROUP = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float"}}
CT = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "ignore": ["re:.*in_proj_[ab]$", "lm_head"],
    "config_groups": {"group_0": GROUP},
}
CONTRADICTIONS: dict[str, tuple[str, dict[str, Any], str]] = {
    "excluded by name": (
        "modelopt",
        NVFP4 | {"exclude_modules": [UP]},
        f"excluded from quantisation by {UP!r}",
    ),
    "excluded by glob": (
        "modelopt",
        NVFP4 | {"ignore": [*EXCLUDED, "model*up_proj"]},
        "by 'model*up_proj'",
    ),
    "excluded by parent": (
        "modelopt",
        NVFP4 | {"ignore": [*EXCLUDED, "model.layers.0.mlp"]},
        "by 'model.layers.0.mlp'",
    ),
    "excluded by expression": (
        "compressed-tensors",
        CT | {"ignore": ["re:.*up_proj$", *CT["ignore"]]},
        "by 're:.*up_proj$'",
    ),
    "dense though targeted": (
        "modelopt",
        NVFP4 | {"ignore": ["lm_head"]},
        "in_proj_b.weight (model.safetensors, BF16 [4, 64]) is stored as dense, but config.json (modelopt) says '*' makes it "
        "nvfp4",
    ),
    "FP8 by record": (
        "modelopt",
        NVFP4 | {"quant_algo": "FP8"},
        "is stored as nvfp4, but config.json (modelopt) says '*' makes it fp8 per tensor",
    ),
    "AWQ by record": (
        "dense",
        {"quant_method": "awq", "bits": 4},
        "is stored as dense, but config.json (awq) says '*' makes it int4",
    ),
    "mixed, unlisted": (
        "modelopt",
        {"quant_algo": "MIXED_PRECISION", "quantized_layers": {}},
        "it is listed nowhere, so it is dense",
    ),
    "another group": (
        "compressed-tensors",
        CT
        | {
            "config_groups": {
                "g": {
                    "targets": ["Linear"],
                    "format": "float-quantized",
                    "weights": {"num_bits": 8},
                }
            }
        },
        "makes it float-quantized",
    ),
    "bad expression": (
        "compressed-tensors",
        CT | {"ignore": ["re:("]},
        "'re:(', which is no valid regular expression",
    ),
}


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_a_record_that_contradicts_the_tensors_is_refused(tmp_path: Path, kind: str):
    naming, record, message = CONTRADICTIONS[kind]
    assert message in refusal_with_record(tmp_path, STYLES[naming], record)


def test_a_record_that_is_no_object_is_refused(tmp_path: Path):
    write_checkpoint(tmp_path)
    write_json(tmp_path / "config.json", config_json(SMALL) | {"quantization_config": [1]})
    assert "the quantisation record is [1], an object is needed" in refusal(tmp_path)
