"""Gated full attention with partial rotary embedding over the paged cache."""

import jax
import jax.numpy as jnp
from jax import Array

from onecat_jax.custom_calls import paged_attention
from onecat_jax.custom_calls.linear import Layer, linear, pick
from onecat_jax.custom_calls.paged_attention import AttentionRows, HeadLayout
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
    scales = None if stack.cache_scales is None else pick(stack.cache_scales, layer)
    norms = pick(stack.q_norm, layer), pick(stack.k_norm, layer)
    first = cache_layer * kv.pages
    places = HeadLayout(
        heads, kv_heads, dim, 2 * dim, 2 * heads * dim, (2 * heads + kv_heads) * dim
    )
    if paged_attention.takes_heads(places, kv.k.shape[1], qkv.dtype, kv.k.dtype, policy):
        gate = qkv[..., : 2 * heads * dim].reshape(*x.shape[:2], heads, 2, dim)[..., 1, :]
        q, keys, values = paged_attention.write_heads(
            qkv,
            kv.k,
            kv.v,
            rows,
            first,
            places,
            norms=norms,
            rotary=rotary,
            eps=options.eps,
            scales=scales,
        )
    else:
        q, gate, k, v = _heads(qkv, places, norms, rotary, scales, options)
        keys, values = paged_attention.write_tokens(kv.k, kv.v, k, v, rows, first, policy=policy)
    out = paged_attention.attend(q, keys, values, rows, first, scale=dim**-0.5, policy=policy)
    out = out if scales is None else out * scales[1]
    out = out * jax.nn.sigmoid(gate.astype(jnp.float32))
    out = out.reshape(*x.shape[:2], heads * dim).astype(dtype)
    update = linear(out, stack.o_proj, layer, out_dtype=jnp.float32, policy=policy)
    return options.shards.sum(update), PagedKV(keys, values, kv.pages)


def _heads(
    qkv: Array,
    places: HeadLayout,
    norms: tuple[Array, Array],
    rotary: tuple[Array, Array],
    scales: Array | None,
    options: ForwardOptions,
) -> tuple[Array, Array, Array, Array]:
    """Query and gate [B, T, H, D], key and value [B, T, J, D] of a projection's rows [B, T, N], in the compute dtype."""
    dtype, dim = options.compute_dtype, places.dim
    q_gate, k, v = jnp.split(qkv, [places.k_at, places.v_at], axis=-1)
    q_gate = q_gate.reshape(*qkv.shape[:2], places.heads, 2, dim)
    q, gate = q_gate[..., 0, :], q_gate[..., 1, :]
    k, v = (a.reshape(*qkv.shape[:2], places.kv_heads, dim) for a in (k, v))
    q = rotate(rms_norm(q, norms[0], options.eps), *rotary)
    k = rotate(rms_norm(k, norms[1], options.eps), *rotary)
    # (q * s) . (k / s) is q . k, and so for values: a float8 cache holds what its range is made for.
    if scales is not None:
        q, k, v = q * scales[0], k / scales[0], v.astype(jnp.float32) / scales[1]
    return q.astype(dtype), gate, k.astype(dtype), v.astype(dtype)
