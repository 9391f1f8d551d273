"""New rows of a batch of sequences through convolution and recurrence, in plain JAX.

The oracle of the handlers, and the last route. Equations and axes: reference.py.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.custom_calls.gdn.reference import GDNInputs, block, causal_conv, chunked
from onecat_jax.custom_calls.linear import Layer, pick
from onecat_jax.custom_calls.rows import LiveRows, put_row, row_of

BLOCK_ROWS = 16  # longer inputs take the chunked form
_L2_EPS = 1e-6

Recurred = tuple[Array, Array, Array]  # o [B, T, Hv, Dv] float32, states, windows
Caches = tuple[Array, Array]  # states, windows


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


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KeptRows:
    """What verified rows leave behind, so that any number of them can be replayed: inputs, not states."""

    qkv: Array  # [L, B, Q, C] projected rows in the window's dtype, of all GDN layers of the model
    gates: Array  # [L, B, Q, 2 * Hv] b | a, float32


@dataclass(frozen=True)
class LayerWeights:
    """The small weights of one layer."""

    conv: Array  # [W, C] float32
    a_log: Array  # [Hv] float32
    dt_bias: Array  # [Hv] float32

    @staticmethod
    def of(weights: GDNWeights, layer: Layer) -> "LayerWeights":
        """One layer of a stack."""
        conv = _pick_by_product(weights.conv, layer)
        return LayerWeights(conv, pick(weights.a_log, layer), pick(weights.dt_bias, layer))


def _pick_by_product(stack: Array, layer: Layer) -> Array:
    """`pick` that leaves an array: a slice would be fused into the convolution and taken anew for every element."""
    if isinstance(layer.number, int):
        return pick(stack, layer)
    chosen = jax.nn.one_hot(layer.number, stack.shape[0], dtype=stack.dtype)
    flat = jnp.einsum("l,ln->n", chosen, stack.reshape(stack.shape[0], -1), precision="highest")
    return flat.reshape(stack.shape[1:])


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
    """Splits the convolved rows; padding rows become zeros with g = 0 and beta = 0, which leave the state alone.

    Args:
      conv: [B, T, C] q | k | v.
      gates: [B, T, 2 * Hv] b | a.
      real: [B, T] bool.
      a_log, dt_bias: [Hv].
      shape: how C divides.
    """
    lead, keys = conv.shape[:2], shape.key_heads * shape.key_dim
    keep = real[..., None]
    q, k, v = jnp.split(jnp.where(keep, conv, 0.0), [keys, 2 * keys], axis=-1)
    q, k = (a.reshape(*lead, shape.key_heads, shape.key_dim) for a in (q, k))
    b, a = jnp.split(gates, 2, axis=-1)
    g = -jnp.exp(a_log) * jax.nn.softplus(a + dt_bias)
    return GDNInputs(
        q=_l2_normalise(q) * shape.key_dim**-0.5,
        k=_l2_normalise(k),
        v=v.reshape(*lead, shape.value_heads, shape.value_dim),
        g=jnp.where(keep, g, 0.0),
        beta=jnp.where(keep, jax.nn.sigmoid(b), 0.0),
    )


@dataclass(frozen=True)
class _Ready:
    """A batch whose rows went through convolution, norms and gates."""

    inputs: GDNInputs
    windows: Array  # [B, W-1, C] after the real rows
    real: Array  # [B, T] bool
    fresh: Array  # [B] bool

    @staticmethod
    def of(
        qkv: Array, gates: Array, caches: Caches, rows: GDNRows, weights: LayerWeights
    ) -> "_Ready":
        states, windows = caches
        fresh = rows.start == 0
        window = jnp.where(fresh[:, None, None], 0, windows[rows.slots])
        conv, new_windows = causal_conv(qkv, window, weights.conv, rows.count)
        real = jnp.arange(qkv.shape[1]) < rows.count[:, None]
        shape = GDNShape.of(states, qkv.shape[-1])
        inputs = recurrence_inputs(conv, gates, real, weights.a_log, weights.dt_bias, shape)
        return _Ready(inputs, new_windows, real, fresh)

    def advance(self, b: Array, state: Array) -> tuple[Array, Array]:
        """Outputs [T, Hv, Dv] of batch row b and its state [Hv, Dv, Dk] after them, from the one in its slot."""
        form = chunked if self.real.shape[1] > BLOCK_ROWS else block
        state = jnp.where(row_of(self.fresh, b), 0.0, state)
        o, state = form(jax.tree.map(lambda a: row_of(a, b)[None], self.inputs), state[None])
        return jnp.where(row_of(self.real, b)[:, None, None], o[0], 0.0), state[0]


def recur_plain(
    qkv: Array, gates: Array, caches: Caches, rows: GDNRows, weights: LayerWeights
) -> Recurred:
    """`recur` (call.py) in plain JAX."""
    ready = _Ready.of(qkv, gates, caches, rows, weights)

    def row(b: Array, carry: Recurred) -> Recurred:
        out, states, windows = carry
        slot = row_of(rows.slots, b)
        o, state = ready.advance(b, row_of(states, slot))
        windows = put_row(windows, row_of(ready.windows, b), slot)
        return put_row(out, o, b), put_row(states, state, slot), windows

    out = jnp.zeros(ready.inputs.v.shape, jnp.float32)
    return rows.live.each(row, (out, *caches))


def verify_plain(
    qkv: Array, gates: Array, caches: Caches, rows: GDNRows, weights: LayerWeights
) -> Array:
    """`verify` (rollback.py) in plain JAX."""
    ready, states = _Ready.of(qkv, gates, caches, rows, weights), caches[0]

    def row(b: Array, out: Array) -> Array:
        o, _ = ready.advance(b, row_of(states, row_of(rows.slots, b)))
        return put_row(out, o, b)

    return rows.live.each(row, jnp.zeros(ready.inputs.v.shape, jnp.float32))


def commit_plain(
    kept: KeptRows, caches: Caches, rows: GDNRows, weights: GDNWeights, first_layer: int, slots: int
) -> Caches:
    """`commit` (rollback.py) in plain JAX: one layer after the other, each in place."""

    def layer(index: Array, caches: Caches) -> Caches:
        place = first_layer + index
        own = replace(rows, slots=place * slots + rows.slots)
        qkv, gates = row_of(kept.qkv, place), row_of(kept.gates, place)
        ready = _Ready.of(qkv, gates, caches, own, LayerWeights.of(weights, Layer(index)))

        def row(b: Array, caches: Caches) -> Caches:
            states, windows = caches
            slot = row_of(own.slots, b)
            _, state = ready.advance(b, row_of(states, slot))
            return put_row(states, state, slot), put_row(windows, row_of(ready.windows, b), slot)

        return rows.live.each(row, caches)

    return lax.fori_loop(0, weights.conv.shape[0], layer, caches)
