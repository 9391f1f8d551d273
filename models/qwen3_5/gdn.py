"""Gated DeltaNet mixer: projections, short convolution, gates, recurrence, gated norm."""

import jax
import jax.numpy as jnp
from jax import Array

from onecat_jax.custom_calls import gdn
from onecat_jax.custom_calls.gdn import GDNRows, GDNWeights, KeptRows, OutputNorm
from onecat_jax.custom_calls.linear import Layer, linear, pick
from onecat_jax.custom_calls.rows import put_row
from onecat_jax.models.qwen3_5.layers import rms_norm
from onecat_jax.models.qwen3_5.options import ForwardOptions
from onecat_jax.models.qwen3_5.weights import GDNStack
from onecat_jax.state import GDNCache


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
    projected, gates = _project(stack, layer, x, options)
    weights, policy = weights_of(stack), options.policy
    if gdn.takes_gated(projected, cache.state, cache.window, weights, policy):
        y, state, window = gdn.recur_gated(
            projected, gates, cache.state, cache.window, rows, weights, layer, _norm(stack, options)
        )
    else:
        qkv, z = jnp.split(projected, [options.local.conv_dim], axis=-1)
        o, state, window = gdn.recur(
            qkv, gates, cache.state, cache.window, rows, weights, layer, policy=policy
        )
        y = _gated(stack, layer, o, z, options)
    return _finish(stack, layer, y, options), GDNCache(state, window, cache.slots)


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
    projected, gates = _project(stack, layer, x, options)
    weights, policy = weights_of(stack), options.policy
    if gdn.takes_gated(projected, cache.state, cache.window, weights, policy):
        y, kept = gdn.verify_gated(
            projected,
            gates,
            cache.state,
            cache.window,
            kept,
            place,
            rows,
            weights,
            layer,
            _norm(stack, options),
        )
    else:
        qkv, z = jnp.split(projected, [options.local.conv_dim], axis=-1)
        o = gdn.verify(qkv, gates, cache.state, cache.window, rows, weights, layer, policy=policy)
        kept = KeptRows(put_row(kept.qkv, qkv, place), put_row(kept.gates, gates, place))
        y = _gated(stack, layer, o, z, options)
    return _finish(stack, layer, y, options), kept


def weights_of(stack: GDNStack) -> GDNWeights:
    """What the recurrence itself needs of a stack."""
    return GDNWeights(stack.conv, stack.a_log, stack.dt_bias)


def _norm(stack: GDNStack, options: ForwardOptions) -> OutputNorm:
    return OutputNorm(stack.out_norm, options.eps)


def _project(
    stack: GDNStack, layer: Layer, x: Array, options: ForwardOptions
) -> tuple[Array, Array]:
    """q | k | v | z [B, T, C + Hv * Dv] and gates b | a [B, T, 2 * Hv]."""
    dtype, policy = options.compute_dtype, options.policy
    h = rms_norm(x, pick(stack.input_norm, layer), options.eps).astype(dtype)
    projected = linear(h, stack.in_proj, layer, policy=policy)
    return projected, linear(h, stack.gate_proj, layer, out_dtype=jnp.float32, policy=policy)


def _gated(stack: GDNStack, layer: Layer, o: Array, z: Array, options: ForwardOptions) -> Array:
    """RMSNorm of o [B, T, Hv, Dv] over Dv, times silu(z), float32; this weight multiplies directly (not zero-centred)."""
    normed = rms_norm(o, pick(stack.out_norm, layer) - 1.0, options.eps)
    return normed * jax.nn.silu(z.reshape(o.shape).astype(jnp.float32))


def _finish(stack: GDNStack, layer: Layer, y: Array, options: ForwardOptions) -> Array:
    """Output projection of y [B, T, Hv, Dv]."""
    y = y.reshape(*y.shape[:2], options.local.value_dim).astype(options.compute_dtype)
    update = linear(y, stack.out_proj, layer, out_dtype=jnp.float32, policy=options.policy)
    return options.shards.sum(update)
