"""Gated DeltaNet mixer: projections, short convolution, gates, recurrence, gated norm."""

import jax
import jax.numpy as jnp
from jax import Array

from onecat_jax.custom_calls import gdn
from onecat_jax.custom_calls.gdn import GDNRows, GDNWeights, KeptRows
from onecat_jax.custom_calls.linear import Layer, linear, pick
from onecat_jax.custom_calls.rows import put_row
from onecat_jax.models.qwen3_5.layers import rms_norm
from onecat_jax.models.qwen3_5.options import ForwardOptions
from onecat_jax.models.qwen3_5.weights import GDNStack
from onecat_jax.state import GDNCache


def _gated_norm(o: Array, z: Array, weight: Array, eps: float) -> Array:
    """RMSNorm over Dv times silu(z), float32; this weight multiplies directly (not zero-centred)."""
    return rms_norm(o, weight - 1.0, eps) * jax.nn.silu(z.astype(jnp.float32))


def gdn_mixer(
    stack: GDNStack,
    layer: Layer,
    x: Array,
    cache: GDNCache,
    rows: GDNRows,
    options: ForwardOptions,
) -> tuple[Array, GDNCache]:
    """One GDN mixer.

    Args:
      stack, layer: weights.
      x: [B, T, E] float32 residual.
      cache: states of all layers.
      rows: slots, positions and counts.
      options: static.

    Returns:
      the float32 update [B, T, E] (zero for padding rows) and the cache after `count` rows.
    """
    qkv, z, gates = _project(stack, layer, x, options)
    o, state, window = gdn.recur(
        qkv, gates, cache.state, cache.window, rows, weights_of(stack), layer, policy=options.policy
    )
    return _finish(stack, layer, o, z, options), GDNCache(state, window, cache.slots)


def gdn_verifier(
    stack: GDNStack,
    layer: Layer,
    x: Array,
    cache: GDNCache,
    rows: GDNRows,
    kept: KeptRows,
    place: Array | int,
    options: ForwardOptions,
) -> tuple[Array, KeptRows]:
    """`gdn_mixer` that leaves the cache alone and keeps what a later commit of some of the rows needs.

    Args:
      kept: of all GDN layers of the model; donate them.
      place: which of them this one is.

    Returns:
      the update, and the kept rows with this layer's.
    """
    qkv, z, gates = _project(stack, layer, x, options)
    o = gdn.verify(
        qkv, gates, cache.state, cache.window, rows, weights_of(stack), layer, policy=options.policy
    )
    kept = KeptRows(put_row(kept.qkv, qkv, place), put_row(kept.gates, gates, place))
    return _finish(stack, layer, o, z, options), kept


def weights_of(stack: GDNStack) -> GDNWeights:
    """What the recurrence itself needs of a stack."""
    return GDNWeights(stack.conv, stack.a_log, stack.dt_bias)


def _project(
    stack: GDNStack, layer: Layer, x: Array, options: ForwardOptions
) -> tuple[Array, Array, Array]:
    """qkv [B, T, C], z [B, T, Hv * Dv] and gates b | a [B, T, 2 * Hv]."""
    dtype, policy = options.compute_dtype, options.policy
    h = rms_norm(x, pick(stack.input_norm, layer), options.eps).astype(dtype)
    both = linear(h, stack.in_proj, layer, policy=policy)
    qkv, z = jnp.split(both, [options.local.conv_dim], axis=-1)
    return qkv, z, linear(h, stack.gate_proj, layer, out_dtype=jnp.float32, policy=policy)


def _finish(stack: GDNStack, layer: Layer, o: Array, z: Array, options: ForwardOptions) -> Array:
    """Gated norm and output projection of o [B, T, Hv, Dv]."""
    y = _gated_norm(o, z.reshape(o.shape), pick(stack.out_norm, layer), options.eps)
    y = y.reshape(*o.shape[:2], options.local.value_dim).astype(options.compute_dtype)
    update = linear(y, stack.out_proj, layer, out_dtype=jnp.float32, policy=options.policy)
    return options.shards.sum(update)
