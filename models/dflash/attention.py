"""Attention of a block over its context and over itself, and the keys and values of the context."""

import jax.numpy as jnp
from jax import Array

from onecat_jax.custom_calls import paged_attention
from onecat_jax.custom_calls.linear import Layer, linear, pick
from onecat_jax.custom_calls.paged_attention import AttentionRows
from onecat_jax.models.dflash.layers import (
    Rotary,
    convolve,
    kernels,
    plain_norm,
    ranged_linear,
    turned,
)
from onecat_jax.models.dflash.options import DraftOptions
from onecat_jax.models.dflash.weights import DFlashParams, LayerStack
from onecat_jax.state import PagedKV


def attention(
    stack: LayerStack,
    number: int,
    x: Array,
    kv: PagedKV,
    rows: AttentionRows,
    rotary: Rotary,
    options: DraftOptions,
) -> tuple[Array, PagedKV]:
    """One attention mixer.

    Args:
      stack, number: weights and which layer.
      x: [B, Q, E] float32 residual.
      kv: windows of all layers.
      rows: where the block lies.
      rotary: cos and sin of its positions.
      options: static.

    Returns:
      the float32 update [B, Q, E] (zero for padding rows), and the window with the block's keys and values.
    """
    layer, dtype = Layer(number), options.compute_dtype
    u = plain_norm(x, pick(stack.input_norm, layer), options.eps)
    around = kernels(stack.attention_conv, layer, u, options)
    u = u if around is None else convolve(u, around[0])
    q, k, v = _heads(stack, layer, u, rotary, options)
    kv = _write(kv, k, v, rows, number, options)
    config = options.config
    out = paged_attention.attend(
        q,
        kv.k,
        kv.v,
        rows,
        number * kv.pages,
        scale=config.head_dim**-0.5,
        window=config.windows[number],
        causal=config.causal[number],
        policy=options.policy,
    )
    out = out.reshape(*x.shape[:2], -1).astype(dtype)
    update = linear(out, stack.o_proj, layer, out_dtype=jnp.float32, policy=options.policy)
    update = options.shards.sum(update)
    if stack.o_bias is not None:
        update = jnp.where(rows.count[:, None, None] > 0, update + pick(stack.o_bias, layer), 0.0)
    return update if around is None else convolve(update, around[1]), kv


def _heads(
    stack: LayerStack, layer: Layer, u: Array, rotary: Rotary, options: DraftOptions
) -> tuple[Array, Array, Array]:
    """Query [B, Q, H, D], key and value [B, Q, J, D] of normed rows u [B, Q, E], in the compute dtype."""
    config, dtype = options.local, options.compute_dtype
    heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    qkv = linear(
        u.astype(dtype), stack.qkv_proj, layer, out_dtype=jnp.float32, policy=options.policy
    )
    if stack.qkv_bias is not None:
        qkv = qkv + pick(stack.qkv_bias, layer)
    qkv = qkv.reshape(*u.shape[:2], heads + 2 * kv_heads, dim)
    # Query and key heads are normed and turned together: half the operations.
    qk, v = qkv[:, :, : heads + kv_heads], qkv[:, :, heads + kv_heads :]
    norms = [pick(stack.q_norm, layer)] * heads + [pick(stack.k_norm, layer)] * kv_heads
    qk = turned(plain_norm(qk, jnp.stack(norms), options.eps), rotary, options).astype(dtype)
    v = (v * config.attention_value_scale).astype(dtype)
    return qk[:, :, :heads], qk[:, :, heads:], v


def context_heads(
    params: DFlashParams, taps: Array, rotary: Rotary, options: DraftOptions
) -> tuple[Array, Array]:
    """Keys and values [B, T, L, J, D] of target rows for all layers, in the compute dtype; taps [A, B, T, E] float32."""
    config, dtype, context = options.local, options.compute_dtype, params.context
    batch, rows = taps.shape[1:3]
    joined = jnp.moveaxis(taps, 0, 2).reshape(batch, rows, -1)  # tap after tap in each row
    features = options.shards.concatenate(ranged_linear(joined, context.fc, Layer(0), options))
    h = plain_norm(features, context.hidden_norm, options.eps).astype(dtype)
    kv = linear(h, context.kv_proj, Layer(0), out_dtype=jnp.float32, policy=options.policy)
    if context.kv_bias is not None:
        kv = kv + context.kv_bias[0]
    layers, kv_heads, dim = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
    kv = kv.reshape(batch, rows, layers, 2, kv_heads, dim)
    k = plain_norm(kv[:, :, :, 0], params.layers.k_norm[:, None], options.eps)
    k = turned(k.reshape(batch, rows, layers * kv_heads, dim), rotary, options)
    v = kv[:, :, :, 1] * config.attention_value_scale
    return k.reshape(v.shape).astype(dtype), v.astype(dtype)


def _write(
    kv: PagedKV, k: Array, v: Array, rows: AttentionRows, number: int, options: DraftOptions
) -> PagedKV:
    first = number * kv.pages
    keys, values = paged_attention.write_tokens(
        kv.k, kv.v, k, v, rows, first, policy=options.policy
    )
    return PagedKV(keys, values, kv.pages)


def write_layers(
    kv: PagedKV, k: Array, v: Array, rows: AttentionRows, options: DraftOptions
) -> PagedKV:
    """Writes keys and values [B, T, L, J, D] of all layers."""
    for number in range(k.shape[2]):
        kv = _write(kv, k[:, :, number], v[:, :, number], rows, number, options)
    return kv
