"""New rows of a batch of sequences through convolution and recurrence, in plain JAX.

The oracle of the handlers, and the last route. Equations and axes: reference.py.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.custom_calls.gdn.reference import GDNInputs, block, causal_conv, chunked
from onecat_jax.custom_calls.rows import LiveRows, put_row, row_of

BLOCK_ROWS = 16  # longer inputs take the chunked form
_L2_EPS = 1e-6

Recurred = tuple[Array, Array, Array]  # o [B, T, Hv, Dv] float32, states, windows


@dataclass(frozen=True)
class GDNRows:
    """Whose state each batch row continues."""

    slots: Array  # [B] int32 flat slot ids of this layer (layer * slots + slot)
    start: Array  # [B] int32 absolute position of the first row; a sequence at 0 starts from zeros whatever its slot held
    count: Array  # [B] int32 real rows
    live: LiveRows


@dataclass(frozen=True)
class GDNWeights:
    """The small weights of all layers of a stack."""

    conv: Array  # [L, W, C] float32, oldest tap first
    a_log: Array  # [L, Hv] float32
    dt_bias: Array  # [L, Hv] float32


@dataclass(frozen=True)
class GDNShape:
    """Sizes that the operands imply: C channels are q and k of Hk heads of Dk, then v of Hv heads of Dv."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    @staticmethod
    def of(states: Array, channels: int) -> "GDNShape":
        """From states [X, Hv, Dv, Dk] and C."""
        value_heads, value_dim, key_dim = states.shape[1:]
        key_heads = (channels - value_heads * value_dim) // (2 * key_dim)
        return GDNShape(key_heads, value_heads, key_dim, value_dim)


def _l2_normalise(x: Array) -> Array:
    return x * lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + _L2_EPS)


def recurrence_inputs(
    conv: Array, gates: Array, real: Array, a_log: Array, dt_bias: Array, shape: GDNShape
) -> GDNInputs:
    """Splits the convolved rows; padding rows get g = 0 and beta = 0, which leave the state alone.

    Args:
      conv: [B, T, C] q | k | v.
      gates: [B, T, 2 * Hv] b | a.
      real: [B, T] bool.
      a_log, dt_bias: [Hv].
      shape: how C divides.
    """
    lead, keys = conv.shape[:2], shape.key_heads * shape.key_dim
    q, k, v = jnp.split(conv, [keys, 2 * keys], axis=-1)
    q, k = (a.reshape(*lead, shape.key_heads, shape.key_dim) for a in (q, k))
    b, a = jnp.split(gates, 2, axis=-1)
    g = -jnp.exp(a_log) * jax.nn.softplus(a + dt_bias)
    keep = real[..., None]
    return GDNInputs(
        q=_l2_normalise(q) * shape.key_dim**-0.5,
        k=_l2_normalise(k),
        v=v.reshape(*lead, shape.value_heads, shape.value_dim),
        g=jnp.where(keep, g, 0.0),
        beta=jnp.where(keep, jax.nn.sigmoid(b), 0.0),
    )


def recur_plain(
    qkv: Array,
    gates: Array,
    states: Array,
    windows: Array,
    rows: GDNRows,
    weights: tuple[Array, Array, Array],
) -> Recurred:
    """`recur` (call.py) in plain JAX; `weights` are conv [W, C], a_log [Hv] and dt_bias [Hv] of one layer."""
    conv_weight, a_log, dt_bias = weights
    width = qkv.shape[1]
    fresh = rows.start == 0
    window = jnp.where(fresh[:, None, None], 0, windows[rows.slots])
    conv, new_windows = causal_conv(qkv, window, conv_weight, rows.count)
    real = jnp.arange(width) < rows.count[:, None]
    shape = GDNShape.of(states, qkv.shape[-1])
    inputs = recurrence_inputs(conv, gates, real, a_log, dt_bias, shape)
    form = chunked if width > BLOCK_ROWS else block

    def row(b: Array, carry: Recurred) -> Recurred:
        out, states, windows = carry
        slot = row_of(rows.slots, b)
        state = jnp.where(row_of(fresh, b), 0.0, row_of(states, slot))
        o, state = form(jax.tree.map(lambda a: row_of(a, b)[None], inputs), state[None])
        windows = put_row(windows, row_of(new_windows, b), slot)
        o = jnp.where(row_of(real, b)[:, None, None], o[0], 0.0)
        return put_row(out, o, b), put_row(states, state[0], slot), windows

    out = jnp.zeros(inputs.v.shape, jnp.float32)
    return rows.live.each(row, (out, states, windows))
