"""Random Qwen3.5 dense models that the parity goldens and the parity tests share.

A case is a small geometry plus a seed. The weights, prompts and continuations are drawn with numpy
alone, each tensor from its own stream named after the tensor, so that the script that makes the
goldens (PyTorch) and the tests (JAX) hold the same numbers without storing them. Every parameter is
perturbed: a norm weight left at its initial value or a zero convolution would hide a missing term.
With these scales a change of 1 % in any single tensor moves some logit by more than 2e-4 of the
logit range.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from oracle_cases import CASES, FULL, LINEAR, Case, layer_types

GOLDEN = Path(__file__).parent / "golden" / "parity"
DECODE_STEPS = 64
__all__ = ["CASES", "FULL", "LINEAR", "Case", "Golden", "layer_types", "load_golden", "weights"]


@dataclass(frozen=True)
class Golden:
    """Logits of the PyTorch model, float32. `full[prompt_length + i]` and `decode[i]` are equal."""

    full: np.ndarray  # [prompt_length + DECODE_STEPS, V] one forward over prompt and continuation
    chunked: np.ndarray  # [3, V] last prompt position after each cached, chunked prefill
    decode: np.ndarray  # [DECODE_STEPS, V] cached steps after an unsplit prefill

    @property
    def logit_range(self) -> float:
        """Largest minus smallest logit of the full forward: the unit of the parity tolerance."""
        return float(self.full.max() - self.full.min())


CASES_BY_NAME = {case.name: case for case in CASES}


def _stream(case: Case, name: str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([case.seed, zlib.crc32(name.encode())]))


def _linear_shapes(config: Mapping[str, Any], kind: str) -> dict[str, tuple[int, int]]:
    """[N, K] of every linear of one layer, named under the layer."""
    hidden, inter = config["hidden_size"], config["intermediate_size"]
    mlp = {
        "mlp.gate_proj": (inter, hidden),
        "mlp.up_proj": (inter, hidden),
        "mlp.down_proj": (hidden, inter),
    }
    if kind == FULL:
        query = config["num_attention_heads"] * config["head_dim"]
        kv = config["num_key_value_heads"] * config["head_dim"]
        mixer = {
            "self_attn.q_proj": (2 * query, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, query),
        }
    else:
        key, value = _gdn_widths(config)
        mixer = {
            "linear_attn.in_proj_qkv": (2 * key + value, hidden),
            "linear_attn.in_proj_z": (value, hidden),
            "linear_attn.in_proj_a": (config["linear_num_value_heads"], hidden),
            "linear_attn.in_proj_b": (config["linear_num_value_heads"], hidden),
            "linear_attn.out_proj": (hidden, value),
        }
    return {f"{name}.weight": shape for name, shape in (mixer | mlp).items()}


def _gdn_widths(config: Mapping[str, Any]) -> tuple[int, int]:
    key = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    return key, config["linear_num_value_heads"] * config["linear_value_head_dim"]


# Gain over 1/sqrt(K), chosen so that each block adds about as much as the stream already holds.
_GAINS = {"o_proj": 2.0, "down_proj": 1.5, "in_proj_b": 1.5}


def _vectors(case: Case, prefix: str, kind: str) -> dict[str, np.ndarray]:
    """Norms, convolution and gates of one layer."""
    config = case.config
    hidden, head_dim = config["hidden_size"], config["head_dim"]

    def normal(name: str, shape: tuple[int, ...], mean: float, spread: float) -> np.ndarray:
        return _normal(case, prefix + name, shape, mean, spread)

    norms: dict[str, tuple[tuple[int, ...], float, float]] = {
        "input_layernorm.weight": ((hidden,), 0.0, 0.1),
        "post_attention_layernorm.weight": ((hidden,), 0.0, 0.1),
    }
    if kind == FULL:
        # A raised mean sharpens the softmax, so that a wrong position shows.
        norms["self_attn.q_norm.weight"] = ((head_dim,), 0.3, 0.1)
        norms["self_attn.k_norm.weight"] = ((head_dim,), 0.3, 0.1)
        return {prefix + name: normal(name, *draw) for name, draw in norms.items()}
    key, value = _gdn_widths(config)
    norms["linear_attn.norm.weight"] = ((config["linear_value_head_dim"],), 1.0, 0.1)
    norms["linear_attn.conv1d.weight"] = (
        (2 * key + value, 1, config["linear_conv_kernel_dim"]),
        0.0,
        0.6,
    )
    tensors = {prefix + name: normal(name, *draw) for name, draw in norms.items()}
    return tensors | _decay(case, prefix, config["linear_num_value_heads"])


def _decay(case: Case, prefix: str, heads: int) -> dict[str, np.ndarray]:
    """exp(A_log) in 0.5..16, softplus(dt_bias) in 0.0025..0.3: memories of one to 800 tokens."""
    draws = {"linear_attn.A_log": (-0.7, 2.77), "linear_attn.dt_bias": (-6.0, -1.0)}
    return {
        prefix + name: _stream(case, prefix + name).uniform(low, high, heads).astype(np.float32)
        for name, (low, high) in draws.items()
    }


def _normal(
    case: Case, name: str, shape: tuple[int, ...], mean: float, spread: float
) -> np.ndarray:
    drawn = _stream(case, name).standard_normal(shape, dtype=np.float32)
    return np.float32(mean) + np.float32(spread) * drawn


def weights(case: Case) -> dict[str, np.ndarray]:
    """All tensors, float32, under Hugging Face names; `lm_head.weight` only when untied."""
    config = case.config
    vocab_shape = (config["vocab_size"], config["hidden_size"])
    row = config["hidden_size"] ** -0.5
    tied = config["tie_word_embeddings"]
    tensors = {
        "model.embed_tokens.weight": _normal(
            case, "model.embed_tokens.weight", vocab_shape, 0.0, row if tied else 1.0
        ),
        "model.norm.weight": _normal(case, "model.norm.weight", vocab_shape[1:], 0.0, 0.1),
    }
    if not tied:
        tensors["lm_head.weight"] = _normal(case, "lm_head.weight", vocab_shape, 0.0, row)
    for index, kind in enumerate(layer_types(config)):
        prefix = f"model.layers.{index}."
        for name, shape in _linear_shapes(config, kind).items():
            spread = _GAINS.get(name.split(".")[1], 1.0) * shape[1] ** -0.5
            tensors[prefix + name] = _normal(case, prefix + name, shape, 0.0, spread)
        tensors.update(_vectors(case, prefix, kind))
    return tensors


def token_ids(case: Case) -> np.ndarray:
    """Prompt and continuation, int32 [prompt_length + DECODE_STEPS]."""
    count = case.prompt_length + DECODE_STEPS
    return _stream(case, "tokens").integers(0, case.config["vocab_size"], count).astype(np.int32)


def fingerprint(case: Case) -> np.ndarray:
    """float64 [3]: sum and sum of squares of all weights, and sum of token id times position."""
    tensors = [w.astype(np.float64) for w in weights(case).values()]
    ids = token_ids(case).astype(np.float64)
    totals = [sum(w.sum() for w in tensors), sum((w * w).sum() for w in tensors)]
    return np.array([*totals, (ids * np.arange(ids.size)).sum()])


def load_golden(case: Case) -> Golden:
    """The stored logits of a case.

    Raises:
      ValueError: the weights drawn here aren't those the goldens were made from.
    """
    with np.load(GOLDEN / f"{case.name}.npz") as stored:
        expected, found = stored["fingerprint"], fingerprint(case)
        if not np.allclose(expected, found, rtol=1e-6, atol=1e-3):
            raise ValueError(
                f"golden {case.name}: the weights' fingerprint is {found}, the file was made from "
                f"{expected}; run tests/oracle/make_goldens.py again"
            )
        return Golden(stored["full"], stored["chunked"], stored["decode"])


def load_versions() -> dict[str, Any]:
    """What made the goldens: versions, command, and per case the oracle's own spread."""
    return json.loads((GOLDEN / "versions.json").read_text())
