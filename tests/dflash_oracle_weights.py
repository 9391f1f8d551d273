"""Random weights and inputs of the DFlash goldens: drawn with numpy alone, so that no file has to hold them.

Each tensor comes from a stream of its own, named after the tensor. Every parameter is perturbed: a norm at one, a convolution
at the identity or a selector at zero would hide a missing term.
"""

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from dflash_oracle_cases import DraftCase

GOLDEN = Path(__file__).parent / "golden" / "dflash"
_GAINS = {"o_proj": 4.0, "down_proj": 1.5, "kernel_projection": 0.3, "hidden_projection": 2.0}


@dataclass(frozen=True)
class DraftGolden:
    """What the equations give, float32 and int32. A draft without a selector has no lattice and no choices."""

    keys: np.ndarray  # [layers, T, Hkv, D] of the context
    values: np.ndarray  # [layers, T, Hkv, D]
    hidden: np.ndarray  # [Q, E] after the last norm, row 0 of the anchor
    ids: np.ndarray  # [Q - 1, U] largest logits first, of the target's vocabulary
    logits: np.ndarray  # [Q - 1, U]
    tokens: np.ndarray  # [Q - 1] drafted greedily
    lattice: np.ndarray  # [Q - 1, U, U] predecessor first
    choices: np.ndarray  # [2, Q - 1] columns of the greedy walk and of a given one
    probabilities: np.ndarray  # [2, Q - 1, U] at a temperature of 0.8, along either walk
    packed: np.ndarray  # [N, Q, E] blocks of the training form; no rows for most cases


def _stream(case: DraftCase, name: str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([case.seed, zlib.crc32(name.encode())]))


def _normal(case: DraftCase, name: str, shape: tuple[int, ...], mean: float, spread: float):
    drawn = _stream(case, name).standard_normal(shape, dtype=np.float32)
    return np.float32(mean) + np.float32(spread) * drawn


def tap_count(case: DraftCase) -> int:
    """Tapped layers; without a list there is one for each layer of the draft."""
    named = case.config["dflash_config"].get("target_layer_ids")
    return len(named) if named else case.config["num_hidden_layers"]


def _linears(case: DraftCase) -> dict[str, tuple[int, int]]:
    """[N, K] of every linear."""
    config, inner = case.config, case.config["dflash_config"]
    hidden, inter = config["hidden_size"], config["intermediate_size"]
    query, kv = (
        config[key] * config["head_dim"] for key in ("num_attention_heads", "num_key_value_heads")
    )
    shapes = {"fc": (hidden, tap_count(case) * hidden)}
    for index in range(config["num_hidden_layers"]):
        prefix = f"layers.{index}."
        shapes |= {
            f"{prefix}self_attn.q_proj": (query, hidden),
            f"{prefix}self_attn.k_proj": (kv, hidden),
            f"{prefix}self_attn.v_proj": (kv, hidden),
            f"{prefix}self_attn.o_proj": (hidden, query),
            f"{prefix}mlp.gate_proj": (inter, hidden),
            f"{prefix}mlp.up_proj": (inter, hidden),
            f"{prefix}mlp.down_proj": (hidden, inter),
        }
        if "conv_kernel_size" in inner:
            groups = hidden // inner["conv_group_size"]
            kernel = (2 * inner["conv_kernel_size"] * groups, hidden)
            shapes |= {f"{prefix}{n}.kernel_projection": kernel for n in _CONVS}
    if "selector_rank" in inner:
        shapes["candidate_selector.hidden_projection"] = (inner["selector_rank"], hidden)
    return shapes


_CONVS = ("attention_conv", "mlp_conv")


def _norms(case: DraftCase) -> dict[str, tuple[int, float]]:
    """Length and mean of every norm; a raised mean of q and k sharpens the softmax, so that a wrong position shows."""
    hidden, head_dim = case.config["hidden_size"], case.config["head_dim"]
    norms = {"hidden_norm": (hidden, 1.0), "norm": (hidden, 1.0)}
    for index in range(case.config["num_hidden_layers"]):
        norms |= {
            f"layers.{index}.input_layernorm": (hidden, 1.0),
            f"layers.{index}.post_attention_layernorm": (hidden, 1.0),
            f"layers.{index}.self_attn.q_norm": (head_dim, 2.0),
            f"layers.{index}.self_attn.k_norm": (head_dim, 1.6),
        }
    return norms


def weights(case: DraftCase) -> dict[str, np.ndarray]:
    """The tensors of the draft's checkpoint under their names, float32; `d2t` is int64."""
    tensors = {}
    for name, shape in _linears(case).items():
        spread = _GAINS.get(name.rsplit(".", 1)[-1], 1.0) * shape[1] ** -0.5
        tensors[f"{name}.weight"] = _normal(case, name, shape, 0.0, spread)
    for name, (length, mean) in _norms(case).items():
        tensors[f"{name}.weight"] = _normal(case, name, (length,), mean, 0.2)
    return tensors | _convs(case) | _codebooks(case) | _own_vocabulary(case)


def _convs(case: DraftCase) -> dict[str, np.ndarray]:
    inner, hidden = case.config["dflash_config"], case.config["hidden_size"]
    taps = inner.get("conv_kernel_size", 0)
    tensors = {}
    for index in range(case.config["num_hidden_layers"] if taps else 0):
        for conv in _CONVS:
            name = f"layers.{index}.{conv}.base_kernel"
            base = _normal(case, name, (2, taps, hidden), 0.0, 0.3)
            base[:, 0] += np.float32(1.0)
            tensors[name] = base
    return tensors


def _codebooks(case: DraftCase) -> dict[str, np.ndarray]:
    rank = case.config["dflash_config"].get("selector_rank")
    if rank is None:
        return {}
    shape = (case.config["vocab_size"], rank)
    names = ("predecessor_codebook", "successor_codebook")
    return {
        f"candidate_selector.{name}": _normal(case, name, shape, 0.0, rank**-0.25) for name in names
    }


def _own_vocabulary(case: DraftCase) -> dict[str, np.ndarray]:
    """A mask row and a head over a part of the vocabulary, where the case has them."""
    hidden, size = case.config["hidden_size"], case.config.get("draft_vocab_size")
    tensors = {}
    if case.mask_row:
        tensors["mask_embedding"] = _normal(case, "mask_embedding", (hidden,), 0.0, 1.0)
    if size is not None:
        chosen = _stream(case, "d2t").choice(case.config["vocab_size"] - 1, size, replace=False)
        tensors["d2t"] = np.sort(chosen).astype(np.int64) - np.arange(size)
        tensors["lm_head.weight"] = _normal(case, "lm_head", (size, hidden), 0.0, hidden**-0.5)
    return tensors


def embeddings(case: DraftCase) -> np.ndarray:
    """[V, E] of the stand-in target."""
    shape = (case.config["vocab_size"], case.config["hidden_size"])
    return _normal(case, "target.embeddings", shape, 0.0, 0.7)


def head(case: DraftCase) -> np.ndarray:
    """[V, E] of the stand-in target."""
    shape = (case.config["vocab_size"], case.config["hidden_size"])
    return _normal(case, "target.head", shape, 0.0, 1.5 * shape[1] ** -0.5)


def taps(case: DraftCase) -> np.ndarray:
    """[A, T, E] residual of the tapped layers, each layer at a scale of its own."""
    count, hidden = tap_count(case), case.config["hidden_size"]
    drawn = _normal(case, "target.taps", (count, case.context, hidden), 0.0, 1.0)
    return drawn * (1.0 + np.arange(count, dtype=np.float32))[:, None, None]


def anchor(case: DraftCase) -> int:
    """The last token, whose key and value no cache holds yet."""
    return int(_stream(case, "anchor").integers(0, case.config["vocab_size"] - 1))


def tokens(case: DraftCase) -> np.ndarray:
    """int32 [T] tokens of the context, for the packed form."""
    drawn = _stream(case, "tokens").integers(0, case.config["vocab_size"] - 1, case.context)
    return drawn.astype(np.int32)


def given_walk(case: DraftCase, rows: int, columns: int) -> np.ndarray:
    """int32 [rows]: columns of a walk that isn't the greedy one."""
    return _stream(case, "walk").integers(0, columns, rows).astype(np.int32)


def fingerprint(case: DraftCase) -> np.ndarray:
    """float64 [2]: sum and sum of squares of all weights and inputs."""
    arrays = [*weights(case).values(), embeddings(case), head(case), taps(case), tokens(case)]
    wide = [a.astype(np.float64) for a in arrays]
    return np.array([sum(a.sum() for a in wide), sum((a * a).sum() for a in wide)])


def load_golden(case: DraftCase) -> DraftGolden:
    """The stored results of a case.

    Raises:
      ValueError: the weights drawn here aren't those that the golden was made from.
    """
    with np.load(GOLDEN / f"{case.name}.npz") as stored:
        expected, found = stored["fingerprint"], fingerprint(case)
        if not np.allclose(expected, found, rtol=1e-6, atol=1e-3):
            raise ValueError(
                f"golden {case.name}: the weights' fingerprint is {found}, the file was made from "
                f"{expected}; run tests/oracle/make_dflash_goldens.py again"
            )
        return DraftGolden(**{name: stored[name] for name in DraftGolden.__dataclass_fields__})


def load_versions() -> dict[str, Any]:
    """What made the goldens, and how they compare with the public implementations."""
    return json.loads((GOLDEN / "versions.json").read_text())
