"""From logits to the target distribution: temperature, min-p, top-k, top-p, in this order.

All functions take float32 logits [B, V] and one value per row, and leave removed tokens at -inf. Neutral values (temperature 1,
min_p 0, top_k 0, top_p 1) change nothing.

Bad values are defined, not undefined: NaN counts as -inf and is never sampled, +inf as the largest finite number. A row with
nothing left keeps only -inf, and `draw.healthy_rows` tells which rows to fail.
"""

import jax.numpy as jnp
from jax import Array

from onecat_jax.sampling.cut import find_cut
from onecat_jax.sampling.search import apply_cut

_LARGEST = float(jnp.finfo(jnp.float32).max)


def clean(logits: Array) -> Array:
    """Float32 logits without NaN (now -inf), +inf (now the largest float) and negative zero."""
    x = logits.astype(jnp.float32)
    x = jnp.where(jnp.isnan(x), -jnp.inf, jnp.minimum(x, _LARGEST))
    return jnp.where(x == 0, 0.0, x)


def apply_temperature(logits: Array, temperature: Array) -> Array:
    """(x - max x) / T per row, [B, V]; T = 0 (a greedy row) counts as 1.

    Subtracting the largest logit changes no probability and keeps a small T from overflowing.
    """
    x = clean(logits)
    largest = jnp.max(x, axis=-1, keepdims=True)
    divisor = jnp.where(temperature > 0, temperature, 1.0)[:, None]
    x = (x - jnp.where(jnp.isfinite(largest), largest, 0.0)) / divisor
    return jnp.where(x == 0, 0.0, x)


def apply_min_p(logits: Array, min_p: Array) -> Array:
    """Removes tokens less likely than min_p times the likeliest one; min_p [B] in [0, 1], 0 = off."""
    x = clean(logits)
    floor = jnp.max(x, axis=-1, keepdims=True) + jnp.log(min_p)[:, None]
    return jnp.where(x >= floor, x, -jnp.inf)


def apply_top_k(logits: Array, top_k: Array) -> Array:
    """Keeps exactly top_k [B] tokens; equal logits rank by token id, lower first. 0 or at least V = off."""
    x, neutral = clean(logits), jnp.ones(top_k.shape, jnp.float32)
    return apply_cut(x, find_cut(x, top_k, neutral))


def apply_top_p(logits: Array, top_p: Array) -> Array:
    """Keeps a token if the mass of the tokens ranked before it is below top_p [B]; the first one always stays."""
    x, neutral = clean(logits), jnp.zeros(top_p.shape, jnp.int32)
    return apply_cut(x, find_cut(x, neutral, top_p))


def scaled_logits(logits: Array, temperature: Array, min_p: Array) -> Array:
    """The part of the transform that needs no order: temperature, then min-p. [B, V]."""
    return apply_min_p(apply_temperature(logits, temperature), min_p)


def target_logits(
    logits: Array, temperature: Array, min_p: Array, top_k: Array, top_p: Array
) -> Array:
    """The whole transform, [B, V]: softmax of the result is the distribution that `sample` draws from.

    A greedy row (temperature 0) is treated as temperature 1.
    """
    scaled = scaled_logits(logits, temperature, min_p)
    return apply_cut(scaled, find_cut(scaled, top_k, top_p))
