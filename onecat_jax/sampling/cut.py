"""Where top-k and top-p end: the last kept token of the order (logit descending, token id ascending).

A kept set is described by its last member, so masking is one comparison per token, and every route to the cut (none, the head
of 64, a full sort) gives the same set. Top-p works on what top-k left: mass is renormalised over the survivors.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.sampling.scan import prefix_sum, tree_sum

HEAD = 64  # tokens looked at before a row is sorted in full


class Cut(NamedTuple):
    """Last kept token of each row."""

    value: Array  # [B] float32 logit
    token: Array  # [B] int32 id


class Head(NamedTuple):
    """The first tokens of each row in total order, and how many of them stay."""

    values: Array  # [B, N] float32, descending
    tokens: Array  # [B, N] int32
    kept: Array  # [B] int32, kept tokens, at least 1
    resolved: Array  # [B] bool, the count can't lie beyond N


def needs_order(top_k: Array, top_p: Array, size: int) -> Array:
    """Rows [B] that top-k or top-p may change."""
    return ((top_k > 0) & (top_k < size)) | (top_p < 1)


def head_of(logits: Array, top_k: Array, top_p: Array, *, full: bool = False) -> Head:
    """Sorts the first HEAD tokens of every row, or all of them.

    Args:
      logits: float32 [B, V] without NaN and negative zero (`transforms.clean`).
      top_k: int32 [B], 0 or less = off.
      top_p: float32 [B], 1 = off.
    """
    size = logits.shape[-1]
    values, tokens = _order(logits, size if full else min(HEAD, size))
    width = values.shape[-1]
    limit = jnp.where((top_k > 0) & (top_k < size), top_k, size)
    count, within = _count(logits, values, limit, top_p)
    return Head(values, tokens, count, within | (width == size))


def empty_head(logits: Array) -> Head:
    """What `head_of` returns, with nothing looked at and nothing resolved."""
    batch, width = logits.shape[0], min(HEAD, logits.shape[-1])
    return Head(
        jnp.zeros((batch, width), jnp.float32),
        jnp.zeros((batch, width), jnp.int32),
        jnp.ones(batch, jnp.int32),
        jnp.zeros(batch, bool),
    )


def _order(logits: Array, width: int) -> tuple[Array, Array]:
    if width < logits.shape[-1]:
        # The barrier keeps later slices from merging into this one, which would turn the top-k into a full sort.
        return lax.optimization_barrier(lax.top_k(logits, width))
    tokens = lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    negative, tokens = lax.sort((-logits, tokens), num_keys=1, is_stable=True)
    return -negative, tokens


def _count(logits: Array, values: Array, limit: Array, top_p: Array) -> tuple[Array, Array]:
    """Kept tokens per row [B], and whether the ordered part was long enough to know."""
    size, width = logits.shape[-1], values.shape[-1]
    rank = jnp.arange(width)
    ranked = rank < limit[:, None]
    largest = _finite(values[:, :1])
    through = prefix_sum(jnp.where(ranked, jnp.exp(values - largest), 0.0))
    before = jnp.pad(through[:, :-1], ((0, 0), (1, 0)))
    limited, unlimited = through[:, -1], tree_sum(jnp.exp(logits - largest))
    wanted = top_p * jnp.where(limit < size, limited, unlimited)
    below = (before < wanted[:, None]) | (top_p >= 1)[:, None] | (rank == 0)
    count = jnp.sum(ranked & below, axis=-1, dtype=jnp.int32)
    mass_suffices = (top_p < 1) & (through[:, -1] >= wanted)
    return count, jnp.where(limit < size, limit <= width, mass_suffices)


def _finite(largest: Array) -> Array:
    return jnp.where(jnp.isfinite(largest), largest, 0.0)


def cut_of(head: Head) -> Cut:
    """The last kept token of each row."""
    last = (head.kept - 1)[:, None]
    value = jnp.take_along_axis(head.values, last, axis=-1)[:, 0]
    return Cut(value, jnp.take_along_axis(head.tokens, last, axis=-1)[:, 0])


def no_cut(batch: int, size: int) -> Cut:
    """The cut that keeps everything."""
    return Cut(jnp.full(batch, -jnp.inf, jnp.float32), jnp.full(batch, size, jnp.int32))


def find_cut(logits: Array, top_k: Array, top_p: Array) -> Cut:
    """Cut of every row, [B]; sorts nothing if no row asks, and only the head if that suffices.

    Args: as `head_of`.
    """
    batch, size = logits.shape
    active = needs_order(top_k, top_p, size)

    def ordered() -> Cut:
        return finish_cut(logits, top_k, top_p, head_of(logits, top_k, top_p), active)

    return lax.cond(jnp.any(active), ordered, lambda: no_cut(batch, size))


def finish_cut(logits: Array, top_k: Array, top_p: Array, head: Head, active: Array) -> Cut:
    """Cut of every row from its head, or from a full sort if the head of an active row was too short."""

    def sort() -> Cut:
        return cut_of(head_of(logits, top_k, top_p, full=True))

    cut = lax.cond(jnp.all(head.resolved | ~active), lambda: cut_of(head), sort)
    free = no_cut(*logits.shape)
    return Cut(jnp.where(active, cut.value, free.value), jnp.where(active, cut.token, free.token))


def apply_cut(logits: Array, cut: Cut) -> Array:
    """Logits [B, V] with everything after the cut at -inf."""
    value, token = cut.value[:, None], cut.token[:, None]
    ids = lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    kept = (logits > value) | ((logits == value) & (ids <= token))
    return jnp.where(kept, logits, -jnp.inf)
