"""The checkpoint's tensors as abstract Flax NNX modules: the one description of names, shapes and logical axes.

Modules are built abstractly (nothing is allocated), mirror the Hugging Face names, and are split once; the forward pass gets
plain dataclasses (`weights.py`). This is the only module that imports NNX.

Logical axes: vocab, embed, mlp, heads (query heads), kv_heads, key_heads and value_heads (GDN). The rows of in_proj_qkv and
conv1d are three sections (query, key, value) that are split each on its own.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from onecat_jax.models.qwen3_5.config import ModelConfig
from onecat_jax.models.spec import Axis, Kind, Section, TensorSpec, TensorSpecs


def _axis(name: str | None, units: int, each: int = 1) -> Axis:
    """A dimension of `units` heads, features or ids, each of so many indices."""
    return (Section(name, units * each, units),)


def _qkv(c: ModelConfig) -> Axis:
    """Query, key and value of the GDN side by side."""
    keys = _axis("key_heads", c.linear_num_key_heads, c.linear_key_head_dim)
    return keys + keys + _value(c)


def _value(c: ModelConfig) -> Axis:
    return _axis("value_heads", c.linear_num_value_heads, c.linear_value_head_dim)


def _embed(c: ModelConfig) -> Axis:
    return _axis("embed", c.hidden_size)


def _param(kind: Kind, *axes: Axis) -> nnx.Param:
    shape = TensorSpec(kind, axes).shape
    return nnx.Param(jax.ShapeDtypeStruct(shape, jnp.float32), kind=kind, axes=axes)


class Linear(nnx.Module):
    """A bias-free linear: weight [N, K]."""

    def __init__(self, n: Axis, k: Axis):
        self.weight = _param("linear", n, k)


class Embedding(nnx.Module):
    """Token embedding: weight [V, E]."""

    def __init__(self, vocab: Axis, hidden: Axis):
        self.weight = _param("embedding", vocab, hidden)


class Vector(nnx.Module):
    """A norm weight [n], or the depthwise convolution [C, 1, W]."""

    def __init__(self, *axes: Axis):
        self.weight = _param("vector", *axes)


class Attention(nnx.Module):
    """Gated attention. q_proj rows of a head: D of query, then D of gate."""

    def __init__(self, c: ModelConfig):
        heads, dim = c.num_attention_heads, c.head_dim
        kv = _axis("kv_heads", c.num_key_value_heads, dim)
        self.q_proj = Linear(_axis("heads", heads, 2 * dim), _embed(c))
        self.k_proj = Linear(kv, _embed(c))
        self.v_proj = Linear(kv, _embed(c))
        self.o_proj = Linear(_embed(c), _axis("heads", heads, dim))
        self.q_norm = Vector(_axis(None, dim))
        self.k_norm = Vector(_axis(None, dim))


class LinearAttention(nnx.Module):
    """Gated DeltaNet. in_proj_qkv rows: all query heads, all key heads, all value heads."""

    def __init__(self, c: ModelConfig):
        heads = _axis("value_heads", c.linear_num_value_heads)
        self.in_proj_qkv = Linear(_qkv(c), _embed(c))
        self.in_proj_z = Linear(_value(c), _embed(c))
        self.in_proj_b = Linear(heads, _embed(c))
        self.in_proj_a = Linear(heads, _embed(c))
        self.out_proj = Linear(_embed(c), _value(c))
        self.conv1d = Vector(_qkv(c), _axis(None, 1), _axis(None, c.linear_conv_kernel_dim))
        self.A_log = _param("vector", heads)
        self.dt_bias = _param("vector", heads)
        self.norm = Vector(_axis(None, c.linear_value_head_dim))


class MLP(nnx.Module):
    """SwiGLU feed-forward."""

    def __init__(self, c: ModelConfig):
        features = _axis("mlp", c.intermediate_size)
        self.gate_proj = Linear(features, _embed(c))
        self.up_proj = Linear(features, _embed(c))
        self.down_proj = Linear(_embed(c), features)


class DecoderLayer(nnx.Module):
    """One pre-norm layer of either kind."""

    def __init__(self, c: ModelConfig, kind: str):
        self.input_layernorm = Vector(_embed(c))
        self.post_attention_layernorm = Vector(_embed(c))
        self.mlp = MLP(c)
        if kind == "full_attention":
            self.self_attn = Attention(c)
        else:
            self.linear_attn = LinearAttention(c)


class MTP(nnx.Module):
    """The multi-token-prediction head, kept for speculative decoding."""

    def __init__(self, c: ModelConfig):
        self.fc = Linear(_embed(c), _axis(None, 2 * c.hidden_size))
        self.pre_fc_norm_embedding = Vector(_embed(c))
        self.pre_fc_norm_hidden = Vector(_embed(c))
        self.norm = Vector(_embed(c))
        layers = [DecoderLayer(c, "full_attention") for _ in range(c.mtp_num_hidden_layers)]
        self.layers = nnx.List(layers)


class Qwen35(nnx.Module):
    """All tensors of a checkpoint."""

    def __init__(self, c: ModelConfig):
        self.embed_tokens = Embedding(_axis("vocab", c.vocab_size), _embed(c))
        self.layers = nnx.List([DecoderLayer(c, kind) for kind in c.layer_types])
        self.norm = Vector(_embed(c))
        if not c.tie_word_embeddings:
            self.lm_head = Linear(_axis("vocab", c.vocab_size), _embed(c))
        if c.mtp_num_hidden_layers:
            self.mtp = MTP(c)


def _spec(name: str, variable: Any) -> TensorSpec:
    meta = variable.get_metadata()
    return TensorSpec(meta["kind"], meta["axes"], required=not name.startswith("mtp."))


def tensor_specs(config: ModelConfig) -> TensorSpecs:
    """Canonical name -> TensorSpec for every tensor of a checkpoint, e.g. `layers.0.linear_attn.A_log`."""
    _, state = nnx.split(Qwen35(config))
    flat = {".".join(map(str, path)): variable for path, variable in nnx.to_flat_state(state)}
    return {name: _spec(name, variable) for name, variable in flat.items()}
