"""From adjusted logits to the target distribution: temperature, min-p, top-k, top-p, in this order.

All functions take float32 logits [B, V] and one value per row, and leave removed tokens at -inf. Neutral values (temperature 1,
min_p 0, top_k 0, top_p 1) change nothing. Under tensor parallelism logits are the rank's slice.

Bad values are defined, not undefined: NaN counts as -inf and is never sampled, +inf as the largest finite number. A row with
nothing left keeps only -inf, and `draw.healthy_rows` tells which rows to fail.
"""

import jax.numpy as jnp
from jax import Array

from onecat_jax.sampling.cut import find_cut
from onecat_jax.sampling.search import apply_cut
from onecat_jax.sampling.vocabulary import ALL_IDS, Vocabulary

_LARGEST = float(jnp.finfo(jnp.float32).max)


def clean(logits: Array) -> Array:
    """Float32 logits without NaN (now -inf), +inf (now the largest float) and negative zero."""
    x = logits.astype(jnp.float32)
    x = jnp.where(jnp.isnan(x), -jnp.inf, jnp.minimum(x, _LARGEST))
    return jnp.where(x == 0, 0.0, x)


def apply_temperature(logits: Array, temperature: Array, vocabulary: Vocabulary = ALL_IDS) -> Array:
    """(x - max x) / T per row, [B, V]; T = 0 (a greedy row) counts as 1.

    Subtracting the largest logit changes no probability and keeps a small T from overflowing.
    """
    x = clean(logits)
    return _tempered(x, vocabulary.largest(x), temperature)


def _tempered(x: Array, largest: Array, temperature: Array) -> Array:
    divisor = jnp.where(temperature > 0, temperature, 1.0)[:, None]
    x = (x - jnp.where(jnp.isfinite(largest), largest, 0.0)[:, None]) / divisor
    return jnp.where(x == 0, 0.0, x)


def apply_min_p(logits: Array, min_p: Array, vocabulary: Vocabulary = ALL_IDS) -> Array:
    """Removes tokens less likely than min_p times the likeliest one; min_p [B] in [0, 1], 0 = off."""
    x = clean(logits)
    return _from(x, vocabulary.largest(x) + jnp.log(min_p))


def _from(x: Array, floor: Array) -> Array:
    return jnp.where(x >= floor[:, None], x, -jnp.inf)


def apply_top_k(logits: Array, top_k: Array, vocabulary: Vocabulary = ALL_IDS) -> Array:
    """Keeps exactly top_k [B] tokens; equal logits rank by token id, lower first. 0 or at least V = off."""
    x, neutral = clean(logits), jnp.ones(top_k.shape, jnp.float32)
    return apply_cut(x, find_cut(x, top_k, neutral, vocabulary), vocabulary)


def apply_top_p(logits: Array, top_p: Array, vocabulary: Vocabulary = ALL_IDS) -> Array:
    """Keeps a token if the mass of the tokens ranked before it is below top_p [B]; the first one always stays."""
    x, neutral = clean(logits), jnp.zeros(top_p.shape, jnp.int32)
    return apply_cut(x, find_cut(x, neutral, top_p, vocabulary), vocabulary)


def scaled_logits(x: Array, largest: Array, temperature: Array, min_p: Array) -> Array:
    """The part of the transform that needs no order: temperature, then min-p. [B, V].

    Args:
      x: cleaned logits.
      largest: [B] the largest of each row.
      temperature, min_p: [B].
    """
    return _from(_tempered(x, largest, temperature), jnp.log(min_p))  # the largest is 0 now


def target_logits(
    logits: Array,
    temperature: Array,
    min_p: Array,
    top_k: Array,
    top_p: Array,
    vocabulary: Vocabulary = ALL_IDS,
) -> Array:
    """The whole transform, [B, V]: softmax of the result is the distribution that `sample` draws from.

    A greedy row (temperature 0) is treated as temperature 1.
    """
    x = clean(logits)
    scaled = scaled_logits(x, vocabulary.largest(x), temperature, min_p)
    return apply_cut(scaled, find_cut(scaled, top_k, top_p, vocabulary), vocabulary)
