"""Top-k and top-p cuts of long rows without sorting: bisection over the bits of the last kept logit, then of its id.

Floats map to unsigned integers of the same order, so 32 masked sums find the value and log2(V) counts find the id among equal
values. Sums are taken in one fixed order and grow with the set, so the bisection is sound in float32 too.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from onecat_jax.sampling.sums import tree_sum
from onecat_jax.sampling.vocabulary import ALL_IDS, Vocabulary

_SIGN = np.uint32(0x80000000)


class Cut(NamedTuple):
    """Last kept token of each row, in the order logit descending, token id ascending."""

    value: Array  # [B] float32 logit
    token: Array  # [B] int32 id


def apply_cut(logits: Array, cut: Cut, vocabulary: Vocabulary = ALL_IDS) -> Array:
    """Logits [B, V], or the rank's slice of them, with everything after the cut at -inf."""
    value, token = cut.value[:, None], cut.token[:, None]
    kept = (logits > value) | ((logits == value) & (vocabulary.ids(logits) <= token))
    return jnp.where(kept, logits, -jnp.inf)


def top_k_cut(logits: Array, count: Array) -> Cut:
    """Cut after `count` tokens: float32 [B, V] without NaN and negative zero, int32 [B] from 1 to V."""
    keys = _keys(logits)

    def ahead(key: Array) -> Array:
        return jnp.sum(keys > key[:, None], axis=-1, dtype=jnp.int32)

    last = _smallest(lambda key: ahead(key) < count, logits.shape[0], 32)
    return Cut(_value(last), _nth_tie(keys == last[:, None], count - ahead(last)))


def top_p_cut(logits: Array, top_p: Array) -> Cut:
    """Cut after the first token with which the mass reaches top_p: float32 [B, V] as above, float32 [B] below 1."""
    keys, largest = _keys(logits), jnp.max(logits, axis=-1)
    weights = weights_of(logits, largest)
    wanted = top_p * tree_sum(weights)

    def ahead(key: Array) -> Array:
        return tree_sum(jnp.where(keys > key[:, None], weights, 0.0))

    first = _keys(largest)
    last = _smallest(lambda key: (ahead(key) < wanted) | (key >= first), logits.shape[0], 32)
    value = _value(last)
    weight = weights_of(value[:, None], largest)[:, 0]
    ties = keys == last[:, None]
    room = jnp.where(weight > 0, jnp.ceil((wanted - ahead(last)) / weight), 1.0)
    most = jnp.sum(ties, axis=-1, dtype=jnp.int32)
    kept = jnp.clip(jnp.minimum(room, most.astype(jnp.float32)).astype(jnp.int32), 1, most)
    return Cut(value, _nth_tie(ties, kept))


def weights_of(logits: Array, largest: Array) -> Array:
    """exp(x - largest) of [B, N] and [B]; a row of nothing but -inf weighs nothing."""
    return jnp.exp(logits - jnp.where(jnp.isfinite(largest), largest, 0.0)[:, None])


def _keys(x: Array) -> Array:
    """Uint32 in the order of the floats."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    return jnp.where(bits >= _SIGN, ~bits, bits | _SIGN)


def _value(key: Array) -> Array:
    bits = jnp.where(key >= _SIGN, key ^ _SIGN, ~key)
    return lax.bitcast_convert_type(bits, jnp.float32)


def _nth_tie(ties: Array, n: Array) -> Array:
    """Id of the n-th True of each row, n from 1: bool [B, V], int32 [B] -> int32 [B]."""
    ids = ALL_IDS.ids(ties)

    def enough(last: Array) -> Array:
        upto = ties & (ids <= last.astype(jnp.int32)[:, None])
        return jnp.sum(upto, axis=-1, dtype=jnp.int32) >= n

    return _smallest(enough, ties.shape[0], ties.shape[1].bit_length()).astype(jnp.int32)


def _smallest(holds: Callable[[Array], Array], batch: int, bits: int) -> Array:
    """The smallest uint32 [B] below 2**bits from which on a monotone condition holds."""

    def narrow(step: Array, found: Array) -> Array:
        raised = found | (jnp.uint32(1) << (bits - 1 - step).astype(jnp.uint32))
        return jnp.where(holds(raised - 1), found, raised)

    return lax.fori_loop(0, bits, narrow, jnp.zeros(batch, jnp.uint32))
