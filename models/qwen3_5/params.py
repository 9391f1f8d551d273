"""The checkpoint's tensors as abstract Flax NNX modules: the one description of names, shapes and logical axes.

Modules are built abstractly (nothing is allocated), mirror the Hugging Face names, and are split once; the forward pass gets
plain dataclasses (`weights.py`). This is the only module that imports NNX.

Logical axes: vocab, embed, mlp, heads (query heads * dim), kv_heads, key_heads and value_heads (GDN), conv. An axis named
"qkv" holds query, key and value segments that must be split each on its own.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from onecat_jax.models.qwen3_5.config import ModelConfig
from onecat_jax.models.spec import Kind, TensorSpec, TensorSpecs


def _param(shape: tuple[int, ...], kind: Kind, *axes: str | None) -> nnx.Param:
    return nnx.Param(jax.ShapeDtypeStruct(shape, jnp.float32), kind=kind, axes=axes)


class Linear(nnx.Module):
    """A bias-free linear: weight [N, K]."""

    def __init__(self, n: int, k: int, n_axis: str | None, k_axis: str | None):
        self.weight = _param((n, k), "linear", n_axis, k_axis)


class Embedding(nnx.Module):
    """Token embedding: weight [V, E]."""

    def __init__(self, vocab: int, hidden: int):
        self.weight = _param((vocab, hidden), "embedding", "vocab", "embed")


class Vector(nnx.Module):
    """A norm weight [n], or the depthwise convolution [C, 1, W]."""

    def __init__(self, shape: tuple[int, ...], *axes: str | None):
        self.weight = _param(shape, "vector", *axes)


class Attention(nnx.Module):
    """Gated attention. q_proj rows of a head: D of query, then D of gate."""

    def __init__(self, c: ModelConfig):
        q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self.q_proj = Linear(2 * q, c.hidden_size, "heads", "embed")
        self.k_proj = Linear(kv, c.hidden_size, "kv_heads", "embed")
        self.v_proj = Linear(kv, c.hidden_size, "kv_heads", "embed")
        self.o_proj = Linear(c.hidden_size, q, "embed", "heads")
        self.q_norm = Vector((c.head_dim,), None)
        self.k_norm = Vector((c.head_dim,), None)


class LinearAttention(nnx.Module):
    """Gated DeltaNet. in_proj_qkv rows: all query heads, all key heads, all value heads."""

    def __init__(self, c: ModelConfig):
        heads = c.linear_num_value_heads
        self.in_proj_qkv = Linear(c.conv_dim, c.hidden_size, "qkv", "embed")
        self.in_proj_z = Linear(c.value_dim, c.hidden_size, "value_heads", "embed")
        self.in_proj_b = Linear(heads, c.hidden_size, "value_heads", "embed")
        self.in_proj_a = Linear(heads, c.hidden_size, "value_heads", "embed")
        self.out_proj = Linear(c.hidden_size, c.value_dim, "embed", "value_heads")
        self.conv1d = Vector((c.conv_dim, 1, c.linear_conv_kernel_dim), "qkv", None, None)
        self.A_log = _param((heads,), "vector", "value_heads")
        self.dt_bias = _param((heads,), "vector", "value_heads")
        self.norm = Vector((c.linear_value_head_dim,), None)


class MLP(nnx.Module):
    """SwiGLU feed-forward."""

    def __init__(self, c: ModelConfig):
        self.gate_proj = Linear(c.intermediate_size, c.hidden_size, "mlp", "embed")
        self.up_proj = Linear(c.intermediate_size, c.hidden_size, "mlp", "embed")
        self.down_proj = Linear(c.hidden_size, c.intermediate_size, "embed", "mlp")


class DecoderLayer(nnx.Module):
    """One pre-norm layer of either kind."""

    def __init__(self, c: ModelConfig, kind: str):
        self.input_layernorm = Vector((c.hidden_size,), "embed")
        self.post_attention_layernorm = Vector((c.hidden_size,), "embed")
        self.mlp = MLP(c)
        if kind == "full_attention":
            self.self_attn = Attention(c)
        else:
            self.linear_attn = LinearAttention(c)


class MTP(nnx.Module):
    """The multi-token-prediction head, kept for speculative decoding."""

    def __init__(self, c: ModelConfig):
        self.fc = Linear(c.hidden_size, 2 * c.hidden_size, "embed", None)
        self.pre_fc_norm_embedding = Vector((c.hidden_size,), "embed")
        self.pre_fc_norm_hidden = Vector((c.hidden_size,), "embed")
        self.norm = Vector((c.hidden_size,), "embed")
        layers = [DecoderLayer(c, "full_attention") for _ in range(c.mtp_num_hidden_layers)]
        self.layers = nnx.List(layers)


class Qwen35(nnx.Module):
    """All tensors of a checkpoint."""

    def __init__(self, c: ModelConfig):
        self.embed_tokens = Embedding(c.vocab_size, c.hidden_size)
        self.layers = nnx.List([DecoderLayer(c, kind) for kind in c.layer_types])
        self.norm = Vector((c.hidden_size,), "embed")
        if not c.tie_word_embeddings:
            self.lm_head = Linear(c.vocab_size, c.hidden_size, "vocab", "embed")
        if c.mtp_num_hidden_layers:
            self.mtp = MTP(c)


def _spec(name: str, variable: Any) -> TensorSpec:
    meta = variable.get_metadata()
    shape = tuple(variable.get_value().shape)
    return TensorSpec(
        shape, meta["kind"], tuple(meta["axes"]), required=not name.startswith("mtp.")
    )


def tensor_specs(config: ModelConfig) -> TensorSpecs:
    """Canonical name -> TensorSpec for every tensor of a checkpoint, e.g. `layers.0.linear_attn.A_log`."""
    _, state = nnx.split(Qwen35(config))
    flat = {".".join(map(str, path)): variable for path, variable in nnx.to_flat_state(state)}
    return {name: _spec(name, variable) for name, variable in flat.items()}
