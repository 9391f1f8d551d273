"""Gated DeltaNet mixer: projections, short convolution, gates, recurrence, gated norm."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.custom_calls import gdn
from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import Layer, linear
from onecat_jax.custom_calls.rows import LiveRows, put_row, row_of
from onecat_jax.models.qwen3_5.config import ModelConfig
from onecat_jax.models.qwen3_5.layers import pick, rms_norm
from onecat_jax.models.qwen3_5.weights import GDNStack
from onecat_jax.state import GDNCache

_L2_EPS = 1e-6
_BLOCK_ROWS = 16  # longer inputs take the chunked form


def _l2_normalise(x: Array) -> Array:
    return x * lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + _L2_EPS)


def _recurrence_inputs(
    conv: Array, gates: Array, real: Array, a_log: Array, dt_bias: Array, config: ModelConfig
) -> gdn.GDNInputs:
    """Splits the convolved rows [B, T, C] and the gate rows b | a [B, T, 2*Hv]; padding rows leave the state alone."""
    lead = conv.shape[:2]
    q, k, v = jnp.split(conv, [config.key_dim, 2 * config.key_dim], axis=-1)
    q, k = (a.reshape(*lead, config.linear_num_key_heads, config.linear_key_head_dim) for a in (q, k))
    v = v.reshape(*lead, config.linear_num_value_heads, config.linear_value_head_dim)
    b, a = jnp.split(gates, 2, axis=-1)
    g = -jnp.exp(a_log) * jax.nn.softplus(a + dt_bias)
    keep = real[..., None]
    return gdn.GDNInputs(
        q=_l2_normalise(q) * config.linear_key_head_dim**-0.5,
        k=_l2_normalise(k),
        v=v,
        g=jnp.where(keep, g, 0.0),
        beta=jnp.where(keep, jax.nn.sigmoid(b), 0.0),
    )


def _gated_norm(o: Array, z: Array, weight: Array, eps: float) -> Array:
    """RMSNorm over Dv times silu(z), float32; this weight multiplies directly (not zero-centred)."""
    return rms_norm(o, weight - 1.0, eps) * jax.nn.silu(z.astype(jnp.float32))


@dataclass(frozen=True)
class GDNRows:
    """Whose state each batch row continues."""

    slots: Array  # [B] int32 flat slot ids of this layer (layer * slots + slot)
    start: Array  # [B] int32 absolute position of the first row; a sequence at 0 starts from zeros whatever its slot held
    count: Array  # [B] int32 real rows
    live: LiveRows


def _recur(
    qkv: Array, gates: Array, cache: GDNCache, rows: GDNRows, weights: tuple[Array, Array, Array], config: ModelConfig
) -> tuple[Array, GDNCache]:
    """Convolution and recurrence of the batch: qkv [B, T, C], gates [B, T, 2*Hv] -> o [B, T, Hv, Dv] float32."""
    conv_weight, a_log, dt_bias = weights
    width = qkv.shape[1]
    fresh = rows.start == 0
    window = jnp.where(fresh[:, None, None], 0, cache.window[rows.slots])
    conv, new_windows = gdn.causal_conv(qkv, window, conv_weight, rows.count)
    real = jnp.arange(width) < rows.count[:, None]
    inputs = _recurrence_inputs(conv, gates, real, a_log, dt_bias, config)
    form = gdn.chunked if width > _BLOCK_ROWS else gdn.block

    def row(b: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        states, windows, out = carry
        slot = row_of(rows.slots, b)
        state = jnp.where(row_of(fresh, b), 0.0, row_of(states, slot))
        o, state = form(jax.tree.map(lambda a: row_of(a, b)[None], inputs), state[None])
        windows = put_row(windows, row_of(new_windows, b), slot)
        return put_row(states, state[0], slot), windows, put_row(out, o[0], b)

    out = jnp.zeros(inputs.v.shape, jnp.float32)
    states, windows, out = rows.live.each(row, (cache.state, cache.window, out))
    return out, GDNCache(states, windows, cache.slots)


def gdn_mixer(
    stack: GDNStack,
    layer: Layer,
    x: Array,
    cache: GDNCache,
    rows: GDNRows,
    *,
    config: ModelConfig,
    dtype: jnp.dtype,
    policy: Policy,
) -> tuple[Array, GDNCache]:
    """One GDN mixer.

    Args:
      stack, layer: weights.
      x: [B, T, E] float32 residual.
      cache: states of all layers.
      rows: slots, positions and counts.

    Returns:
      the float32 update [B, T, E] (zero for padding rows) and the cache after `count` rows.
    """
    h = rms_norm(x, pick(stack.input_norm, layer), config.rms_norm_eps).astype(dtype)
    qkv, z = jnp.split(linear(h, stack.in_proj, layer, policy=policy), [config.conv_dim], axis=-1)
    gates = linear(h, stack.gate_proj, layer, out_dtype=jnp.float32, policy=policy)
    weights = (pick(stack.conv, layer), pick(stack.a_log, layer), pick(stack.dt_bias, layer))
    o, cache = _recur(qkv, gates, cache, rows, weights, config)
    y = _gated_norm(o, z.reshape(o.shape), pick(stack.out_norm, layer), config.rms_norm_eps)
    y = y.reshape(*x.shape[:2], config.value_dim).astype(dtype)
    return linear(y, stack.out_proj, layer, out_dtype=jnp.float32, policy=policy), cache
