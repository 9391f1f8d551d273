"""Small pure pieces shared by the layers: norm, rotary embedding, feed-forward."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.custom_calls.linear import Layer, linear, pick
from onecat_jax.models.qwen3_5.options import ForwardOptions
from onecat_jax.models.qwen3_5.weights import MLPStack


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Zero-centred RMSNorm over the last axis: float32 in, float32 out; weights are stored around 0."""
    return normalised(x, eps) * (1.0 + weight)


def normalised(x: Array, eps: float) -> Array:
    """x over its root mean square along the last axis, float32."""
    x = x.astype(jnp.float32)
    total = lax.platform_dependent(x * x, cpu=_sum_by_halves, default=_sum)
    return x * lax.rsqrt(total / x.shape[-1] + eps)


def _sum(x: Array) -> Array:
    return jnp.sum(x, axis=-1, keepdims=True)


def _sum_by_halves(x: Array) -> Array:
    """[..., N] -> [..., 1] in an order that is spelled out: on CPU the compiler sums in another order when there are many rows,
    and a prompt's bits would depend on how it was cut into chunks."""
    width = 1 << max(x.shape[-1] - 1, 0).bit_length()
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])
    while width > 1:
        width //= 2
        x = x[..., :width] + x[..., width:]
    return x


def rotary_angles(position: Array, rotary_dim: int, theta: float) -> tuple[Array, Array]:
    """cos and sin [B, T, rotary_dim / 2] float32 for absolute positions [B, T]."""
    exponent = jnp.arange(0, rotary_dim, 2, dtype=jnp.float32) / rotary_dim
    angle = position.astype(jnp.float32)[..., None] * (1.0 / theta**exponent)
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Partial rotary embedding of x [B, T, heads, D] float32: dim j pairs with j + rotary_dim / 2, the rest passes."""
    half = cos.shape[-1]
    cos, sin = cos[:, :, None], sin[:, :, None]
    a, b = x[..., :half], x[..., half : 2 * half]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], axis=-1)


def mlp(stack: MLPStack, layer: Layer, x: Array, options: ForwardOptions) -> Array:
    """SwiGLU block of the float32 residual x [B, T, E]; returns the float32 update."""
    dtype, policy = options.compute_dtype, options.policy
    h = rms_norm(x, pick(stack.input_norm, layer), options.eps).astype(dtype)
    gate, up = jnp.split(linear(h, stack.gate_up_proj, layer, policy=policy), 2, axis=-1)
    h = (jax.nn.silu(gate.astype(jnp.float32)) * up.astype(jnp.float32)).astype(dtype)
    update = linear(h, stack.down_proj, layer, out_dtype=jnp.float32, policy=policy)
    return options.shards.sum(update)
