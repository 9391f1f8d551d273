"""The draft's tensors as abstract Flax NNX modules: names, shapes and logical axes (see `models.qwen3_5.params`).

Logical axes: vocab, embed, mlp, heads, kv_heads, and context, the output rows of fc, which ranks share out and gather.
Convolutions and the selector's projection are whole on every rank.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from onecat_jax.models.dflash.config import DFlashConfig
from onecat_jax.models.spec import Axis, Kind, Section, TensorSpec, TensorSpecs

_SIDES = 2  # a convolution before a sublayer and one after it
# What a checkpoint may hold besides: an embedding of the mask, a head, a table of the draft's ids. t2d is the inverse of d2t.
_OPTIONAL = frozenset({"mask_embedding", "lm_head", "t2d"})


def _axis(name: str | None, units: int, each: int = 1) -> Axis:
    return (Section(name, units * each, units),)


def _embed(c: DFlashConfig) -> Axis:
    return _axis("embed", c.hidden_size)


def _param(kind: Kind, *axes: Axis) -> nnx.Param:
    shape = TensorSpec(kind, axes).shape
    return nnx.Param(jax.ShapeDtypeStruct(shape, jnp.float32), kind=kind, axes=axes)


class Linear(nnx.Module):
    """weight [N, K], bias [N] where there is one."""

    def __init__(self, n: Axis, k: Axis, bias: bool = False):
        self.weight = _param("linear", n, k)
        if bias:
            self.bias = _param("vector", n)


class Vector(nnx.Module):
    """A norm weight [n]."""

    def __init__(self, axis: Axis):
        self.weight = _param("vector", axis)


class Attention(nnx.Module):
    """Grouped-query attention with norms of query and key heads."""

    def __init__(self, c: DFlashConfig):
        heads = _axis("heads", c.num_attention_heads, c.head_dim)
        kv_heads = _axis("kv_heads", c.num_key_value_heads, c.head_dim)
        self.q_proj = Linear(heads, _embed(c), c.attention_bias)
        self.k_proj = Linear(kv_heads, _embed(c), c.attention_bias)
        self.v_proj = Linear(kv_heads, _embed(c), c.attention_bias)
        self.o_proj = Linear(_embed(c), heads, c.attention_bias)
        self.q_norm = Vector(_axis(None, c.head_dim))
        self.k_norm = Vector(_axis(None, c.head_dim))


class MLP(nnx.Module):
    """SwiGLU feed-forward."""

    def __init__(self, c: DFlashConfig):
        features = _axis("mlp", c.intermediate_size)
        self.gate_proj = Linear(features, _embed(c))
        self.up_proj = Linear(features, _embed(c))
        self.down_proj = Linear(_embed(c), features)


class Conv(nnx.Module):
    """Convolutions around a sublayer. Rows of kernel_projection: side, tap, group."""

    def __init__(self, c: DFlashConfig):
        sides, taps = _axis(None, _SIDES), _axis(None, c.conv_kernel_size)
        self.base_kernel = _param("vector", sides, taps, _embed(c))
        rows = _SIDES * c.conv_kernel_size * c.conv_groups
        self.kernel_projection = Linear(_axis(None, rows), _embed(c))


class Layer(nnx.Module):
    """One pre-norm layer."""

    def __init__(self, c: DFlashConfig):
        self.input_layernorm = Vector(_embed(c))
        self.post_attention_layernorm = Vector(_embed(c))
        self.self_attn = Attention(c)
        self.mlp = MLP(c)
        if c.selects:
            self.attention_conv = Conv(c)
            self.mlp_conv = Conv(c)


class Selector(nnx.Module):
    """Scores of pairs of neighbouring candidates."""

    def __init__(self, c: DFlashConfig):
        vocab, rank = _axis("vocab", c.vocab_size), _axis(None, c.selector_rank)
        self.predecessor_codebook = _param("embedding", vocab, rank)
        self.successor_codebook = _param("embedding", vocab, rank)
        self.hidden_projection = Linear(rank, _embed(c))


class DFlash(nnx.Module):
    """All tensors of a checkpoint."""

    def __init__(self, c: DFlashConfig):
        self.fc = Linear(
            _axis("context", c.hidden_size), _axis(None, c.hidden_size * len(c.target_layer_ids))
        )
        self.hidden_norm = Vector(_embed(c))
        self.layers = nnx.List([Layer(c) for _ in range(c.num_hidden_layers)])
        self.norm = Vector(_embed(c))
        if c.selects:
            self.candidate_selector = Selector(c)
        self.mask_embedding = _param("vector", _embed(c))
        self.lm_head = Linear(_axis("vocab", c.draft_vocab_size), _embed(c))
        if c.own_vocabulary:
            self.d2t = _param("index", _axis(None, c.draft_vocab_size))
            self.t2d = _param("index", _axis(None, c.vocab_size))


def tensor_specs(config: DFlashConfig) -> TensorSpecs:
    """Canonical name -> TensorSpec for every tensor of a checkpoint, e.g. `layers.0.mlp_conv.base_kernel`."""
    _, state = nnx.split(DFlash(config))
    flat = {".".join(map(str, path)): variable for path, variable in nnx.to_flat_state(state)}
    optional = _OPTIONAL - ({"lm_head"} if config.own_vocabulary else set())
    return {name: _spec(name, variable, optional) for name, variable in flat.items()}


def _spec(name: str, variable: Any, optional: frozenset[str]) -> TensorSpec:
    meta = variable.get_metadata()
    return TensorSpec(meta["kind"], meta["axes"], required=name.split(".")[0] not in optional)
