"""Gated DeltaNet mixer: projections, short convolution, gates, recurrence, gated norm."""

import jax
import jax.numpy as jnp
from jax import Array

from onecat_jax.custom_calls import gdn
from onecat_jax.custom_calls.gdn import GDNRows
from onecat_jax.custom_calls.linear import Layer, linear, pick
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
    config, dtype, policy = options.local, options.compute_dtype, options.policy
    h = rms_norm(x, pick(stack.input_norm, layer), options.eps).astype(dtype)
    qkv, z = jnp.split(linear(h, stack.in_proj, layer, policy=policy), [config.conv_dim], axis=-1)
    gates = linear(h, stack.gate_proj, layer, out_dtype=jnp.float32, policy=policy)
    weights = gdn.GDNWeights(stack.conv, stack.a_log, stack.dt_bias)
    caches = (cache.state, cache.window)
    o, state, window = gdn.recur(qkv, gates, *caches, rows, weights, layer, policy=policy)
    y = _gated_norm(o, z.reshape(o.shape), pick(stack.out_norm, layer), options.eps)
    y = y.reshape(*x.shape[:2], config.value_dim).astype(dtype)
    update = linear(y, stack.out_proj, layer, out_dtype=jnp.float32, policy=policy)
    return options.shards.sum(update), GDNCache(state, window, cache.slots)
