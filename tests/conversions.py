"""Checkpoints to convert, and what the conversion tests ask of them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from checkpoints import SMALL, Style, tensor_specs, write_checkpoint

from onecat_jax.config import EngineConfig
from onecat_jax.custom_calls.linear.weights import DenseTensor, NVFP4Tensor
from onecat_jax.loading import Checkpoint, load_tensors
from onecat_jax.loading.orbax.convert import convert
from onecat_jax.loading.sources import find_sources
from onecat_jax.model_loader import load_model
from onecat_jax.models.qwen3_5 import Params
from onecat_jax.models.registry import resolve
from onecat_jax.models.tensors import HostTensor
from onecat_jax.sharding import Placement

# Divides by four ranks, with key/value heads that two ranks each share.
FOUR = replace(
    SMALL,
    intermediate_size=128,
    linear_num_key_heads=4,
    linear_num_value_heads=8,
    mtp_num_hidden_layers=1,
)
QWEN_27B = replace(  # the geometry of a large model, of which nothing is written
    SMALL,
    vocab_size=248320,
    hidden_size=5120,
    intermediate_size=17408,
    num_attention_heads=24,
    num_key_value_heads=4,
    head_dim=256,
    linear_num_key_heads=16,
    linear_num_value_heads=48,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
)
DENSE = Style()
Parts = dict[str, np.ndarray]


def converted(folder: Path, config: Any = FOUR, style: Style = DENSE) -> tuple[Path, Path]:
    """A written checkpoint and its conversion."""
    source = write_checkpoint(folder / "source", config, style)
    return source, convert(source, folder / "out").folder


def parts(tensor: HostTensor) -> Parts:
    """The arrays of a host tensor."""
    if isinstance(tensor, NVFP4Tensor):
        scale = np.asarray(tensor.global_scale, np.float32)
        return {"codes": tensor.codes, "scales": tensor.scales, "global_scale": scale}
    return {"": tensor.weight if isinstance(tensor, DenseTensor) else tensor}


def host_tensors(folder: Path) -> Mapping[str, HostTensor]:
    """Whole tensors by canonical name."""
    checkpoint = Checkpoint.open(folder)
    config = resolve(checkpoint.config).read_config(checkpoint.config)
    return load_tensors(checkpoint, tensor_specs(config))


def load(folder: Path, ranks: int, dtype: str = "float32", backend: Any = "auto") -> Params:
    """Device weights, as the engine loads them."""
    checkpoint = Checkpoint.open(folder)
    model = resolve(checkpoint.config).read_config(checkpoint.config)
    sources = find_sources(checkpoint, tensor_specs(model))
    config = EngineConfig(dtype=dtype, backend=backend, tensor_parallel_size=ranks)
    placement = Placement.of(ranks)
    return load_model(checkpoint, sources, model, config, lambda *_: None, placement).params


def flattened(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, leaf) of nested dictionaries, in their order."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def bits(array: Any) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def assert_same_leaves(one: Any, other: Any) -> None:
    """The same structure, and every leaf the same bits in the same places."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    leaves = jax.tree_util.tree_leaves_with_path(one)
    for (path, a), b in zip(leaves, jax.tree.leaves(other), strict=True):
        assert (a.dtype, a.shape, a.sharding) == (b.dtype, b.shape, b.sharding), path
        assert bits(a) == bits(b), path
