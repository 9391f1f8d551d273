"""Gated full attention with partial rotary embedding over the paged cache."""

import jax
import jax.numpy as jnp
from jax import Array

from onecat_jax.custom_calls import paged_attention
from onecat_jax.custom_calls.linear import Layer, linear, pick
from onecat_jax.custom_calls.paged_attention import AttentionRows
from onecat_jax.models.qwen3_5.layers import rms_norm, rotate
from onecat_jax.models.qwen3_5.options import ForwardOptions
from onecat_jax.models.qwen3_5.weights import AttentionStack
from onecat_jax.state import PagedKV


def attention(
    stack: AttentionStack,
    layer: Layer,
    x: Array,
    kv: PagedKV,
    cache_layer: Array | int,
    rows: AttentionRows,
    rotary: tuple[Array, Array],
    options: ForwardOptions,
) -> tuple[Array, PagedKV]:
    """One gated attention mixer.

    Args:
      stack, layer: weights.
      x: [B, T, E] float32 residual.
      kv: cache of all layers; this layer's pages start at cache_layer * kv.pages.
      rows: positions of the new rows and their pages.
      rotary: cos and sin [B, T, R/2].
      options: static.

    Returns:
      the float32 update [B, T, E] (zero for padding rows) and the cache with the new keys and values.
    """
    config, dtype, policy = options.local, options.compute_dtype, options.policy
    heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    h = rms_norm(x, pick(stack.input_norm, layer), options.eps).astype(dtype)
    qkv = linear(h, stack.qkv_proj, layer, policy=policy)
    q_gate, k, v = jnp.split(qkv, [2 * heads * dim, (2 * heads + kv_heads) * dim], axis=-1)
    q_gate = q_gate.reshape(*x.shape[:2], heads, 2, dim)
    q, gate = q_gate[..., 0, :], q_gate[..., 1, :]
    k, v = (a.reshape(*x.shape[:2], kv_heads, dim) for a in (k, v))
    q = rotate(rms_norm(q, pick(stack.q_norm, layer), options.eps), *rotary)
    k = rotate(rms_norm(k, pick(stack.k_norm, layer), options.eps), *rotary)
    scales = None if stack.cache_scales is None else pick(stack.cache_scales, layer)
    if (
        scales is not None
    ):  # (q * s) . (k / s) is q . k, and so for values: a float8 cache holds what its range is made for
        q, k, v = q * scales[0], k / scales[0], v.astype(jnp.float32) / scales[1]
    q, k, v = q.astype(dtype), k.astype(dtype), v.astype(dtype)
    first = cache_layer * kv.pages
    keys, values = paged_attention.write_tokens(kv.k, kv.v, k, v, rows, first, policy=policy)
    out = paged_attention.attend(q, keys, values, rows, first, scale=dim**-0.5, policy=policy)
    out = out if scales is None else out * scales[1]
    out = out * jax.nn.sigmoid(gate.astype(jnp.float32))
    out = out.reshape(*x.shape[:2], heads * dim).astype(dtype)
    update = linear(out, stack.o_proj, layer, out_dtype=jnp.float32, policy=policy)
    return options.shards.sum(update), PagedKV(keys, values, kv.pages)
