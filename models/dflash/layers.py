"""Small pure pieces of a draft: plain norms, both rotary layouts, block convolutions, feed-forward."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.custom_calls.linear import Layer, Linear, linear, pick
from onecat_jax.models.dflash.options import DraftOptions
from onecat_jax.models.dflash.weights import ConvStack, LayerStack
from onecat_jax.models.qwen3_5.layers import normalised, rotate

Rotary = tuple[Array, Array]  # cos and sin [B, T, rotary_dim / 2]


def plain_norm(x: Array, weight: Array, eps: float) -> Array:
    """RMSNorm over the last axis whose weight multiplies directly: float32 out."""
    return normalised(x, eps) * weight


def turned(x: Array, rotary: Rotary, options: DraftOptions) -> Array:
    """Rotary embedding of x [B, T, heads, D] float32."""
    cos, sin = rotary
    if options.config.is_neox_style:
        return rotate(x, cos, sin)
    width = 2 * cos.shape[-1]
    cos, sin = cos[:, :, None], sin[:, :, None]
    even, odd = x[..., 0:width:2], x[..., 1:width:2]
    pairs = jnp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
    return jnp.concatenate([pairs.reshape(*x.shape[:-1], width), x[..., width:]], axis=-1)


def ranged_linear(x: Array, weight: Linear, layer: Layer, options: DraftOptions) -> Array:
    """x W^T in float32 for rows [..., K] float32 that float16 couldn't hold: they are scaled by a power of two each, which is
    exact, and their results are scaled back."""
    if options.compute_dtype != jnp.float16:
        return _linear(x, weight, layer, options)
    exponent = (
        lax.bitcast_convert_type(jnp.max(jnp.abs(x), axis=-1, keepdims=True), jnp.int32) >> 23
    )
    exponent = jnp.clip(exponent, 1, 253)  # biased; the scaled row's largest value lies in [1, 2)
    down = lax.bitcast_convert_type((254 - exponent) << 23, jnp.float32)
    up = lax.bitcast_convert_type(exponent << 23, jnp.float32)
    return _linear(x * down, weight, layer, options) * up


def _linear(x: Array, weight: Linear, layer: Layer, options: DraftOptions) -> Array:
    x = x.astype(options.compute_dtype)
    return linear(x, weight, layer, out_dtype=jnp.float32, policy=options.policy)


def kernels(
    stack: ConvStack | None, layer: Layer, u: Array, options: DraftOptions
) -> tuple[Array, Array] | None:
    """Kernels before and after a sublayer, both from its normed input u [B, Q, E]: [B, Q, taps, groups, features of one]."""
    if stack is None:
        return None
    config = options.config
    taps, groups, each = config.conv_kernel_size, config.conv_groups, config.conv_group_size
    delta = _linear(u, stack.kernel_projection, layer, options)
    delta = delta.reshape(*u.shape[:2], 2, taps, groups, 1)
    base = pick(stack.base_kernel, layer).reshape(2, taps, groups, each)
    kernel = base + delta
    return kernel[:, :, 0], kernel[:, :, 1]


def convolve(x: Array, kernel: Array) -> Array:
    """Causal convolution inside blocks, x [B, Q, E] float32: tap t of row i meets row i - t, or nothing before the block."""
    batch, rows, width = x.shape
    x = x.reshape(batch, rows, *kernel.shape[-2:])
    out = kernel[:, :, 0] * x
    for tap in range(1, kernel.shape[2]):
        earlier = jnp.pad(x[:, :-tap], ((0, 0), (tap, 0), (0, 0), (0, 0)))
        out = out + kernel[:, :, tap] * earlier
    return out.reshape(batch, rows, width)


def mlp(stack: LayerStack, layer: Layer, x: Array, options: DraftOptions) -> Array:
    """SwiGLU block of the float32 residual x [B, Q, E]; returns the float32 update."""
    u = plain_norm(x, pick(stack.post_norm, layer), options.eps)
    around = kernels(stack.mlp_conv, layer, u, options)
    u = u if around is None else convolve(u, around[0])
    gate, up = jnp.split(_linear(u, stack.gate_up_proj, layer, options), 2, axis=-1)
    h = ranged_linear(jax.nn.silu(gate) * up, stack.down_proj, layer, options)
    update = options.shards.sum(h)
    return update if around is None else convolve(update, around[1])
