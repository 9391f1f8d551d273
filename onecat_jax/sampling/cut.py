"""Where top-k and top-p end: the last kept token of the order (logit descending, token id ascending).

A kept set is described by its last member, so masking is one comparison per token. Most rows are settled by their 64 first
tokens; a row that isn't is searched in full (`search`). Which of the two decides a row depends on that row alone. Top-p works
on what top-k left: mass is renormalised over the survivors.

Heads and cuts are the same on all ranks; a row that has to be searched is gathered first.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.sampling.search import Cut, apply_cut, top_k_cut, top_p_cut, weights_of
from onecat_jax.sampling.vocabulary import ALL_IDS, Vocabulary

HEAD = 64  # tokens looked at before a row is searched in full


class Head(NamedTuple):
    """The first tokens of each row in total order, and how many of them stay."""

    values: Array  # [B, N] float32, descending
    tokens: Array  # [B, N] int32
    kept: Array  # [B] int32, kept tokens, at least 1
    resolved: Array  # [B] bool, the number of kept tokens can't exceed N


def needs_order(top_k: Array, top_p: Array, size: int) -> Array:
    """Rows [B] that top-k or top-p may change."""
    return _limited(top_k, size) | (top_p < 1)


def _limited(top_k: Array, size: int) -> Array:
    return (top_k > 0) & (top_k < size)


def head_of(logits: Array, top_k: Array, top_p: Array, vocabulary: Vocabulary = ALL_IDS) -> Head:
    """The head of every row.

    Args:
      logits: float32 [B, V] without NaN and negative zero (`transforms.clean`); the rank's slice.
      top_k: int32 [B], 0 or less = off.
      top_p: float32 [B], 1 = off.
      vocabulary: what the slice is of.
    """
    size = vocabulary.size(logits)
    width = min(HEAD, size)
    values, tokens = vocabulary.top(logits, width)
    limited = _limited(top_k, size)
    rank = jnp.arange(width)
    ranked = rank < jnp.where(limited, top_k, size)[:, None]
    largest = values[:, 0]
    through = lax.cumsum(jnp.where(ranked, weights_of(values, largest), 0.0), axis=1)
    before = jnp.pad(through[:, :-1], ((0, 0), (1, 0)))
    everything = vocabulary.total(weights_of(logits, largest))
    wanted = top_p * jnp.where(limited, through[:, -1], everything)
    below = (before < wanted[:, None]) | (top_p >= 1)[:, None] | (rank == 0)
    kept = jnp.sum(ranked & below, axis=-1, dtype=jnp.int32)
    enough_mass = (top_p < 1) & (through[:, -1] >= wanted)
    resolved = jnp.where(limited, top_k <= width, enough_mass) | (width == size)
    return Head(values, tokens, kept, resolved)


def find_head(
    logits: Array,
    top_k: Array,
    top_p: Array,
    active: Array,
    vocabulary: Vocabulary = ALL_IDS,
) -> Head:
    """The head of every row, or an empty one if no row is active."""
    return lax.cond(
        jnp.any(active),
        lambda: head_of(logits, top_k, top_p, vocabulary),
        lambda: empty_head(logits, vocabulary),
    )


def empty_head(logits: Array, vocabulary: Vocabulary = ALL_IDS) -> Head:
    """What `head_of` returns, with nothing looked at and nothing resolved."""
    batch, width = logits.shape[0], min(HEAD, vocabulary.size(logits))
    return Head(
        jnp.zeros((batch, width), jnp.float32),
        jnp.zeros((batch, width), jnp.int32),
        jnp.ones(batch, jnp.int32),
        jnp.zeros(batch, bool),
    )


def cut_of(head: Head) -> Cut:
    """The last kept token of each row."""
    last = (head.kept - 1)[:, None]
    value = jnp.take_along_axis(head.values, last, axis=-1)[:, 0]
    return Cut(value, jnp.take_along_axis(head.tokens, last, axis=-1)[:, 0])


def no_cut(batch: int, size: int) -> Cut:
    """The cut that keeps everything."""
    return Cut(jnp.full(batch, -jnp.inf, jnp.float32), jnp.full(batch, size, jnp.int32))


def search_cut(logits: Array, top_k: Array, top_p: Array) -> Cut:
    """Cut of every row by bisection; arguments as `head_of`, over the whole vocabulary."""
    batch, size = logits.shape
    limited = _limited(top_k, size)
    by_count = top_k_cut(logits, jnp.where(limited, top_k, size))
    cut = _choose(limited, by_count, no_cut(batch, size))
    return _choose(top_p < 1, top_p_cut(apply_cut(logits, cut), top_p), cut)


def find_cut(logits: Array, top_k: Array, top_p: Array, vocabulary: Vocabulary = ALL_IDS) -> Cut:
    """Cut of every row, [B]; looks at nothing if no row asks, and only at the heads if they suffice.

    Args: as `head_of`.
    """
    size = vocabulary.size(logits)
    active = needs_order(top_k, top_p, size)

    def ordered() -> Cut:
        head = head_of(logits, top_k, top_p, vocabulary)
        return finish_cut(logits, top_k, top_p, head, active, vocabulary)

    return lax.cond(jnp.any(active), ordered, lambda: no_cut(logits.shape[0], size))


def finish_cut(
    logits: Array,
    top_k: Array,
    top_p: Array,
    head: Head,
    active: Array,
    vocabulary: Vocabulary = ALL_IDS,
) -> Cut:
    """Cut of every row: from its head where that is resolved, by search otherwise, none where not active."""
    from_head = cut_of(head)

    def search() -> Cut:
        found = search_cut(vocabulary.whole_rows(logits), top_k, top_p)
        return _choose(head.resolved, from_head, found)

    cut = lax.cond(jnp.any(active & ~head.resolved), search, lambda: from_head)
    return _choose(active, cut, no_cut(logits.shape[0], vocabulary.size(logits)))


def _choose(where: Array, this: Cut, other: Cut) -> Cut:
    return Cut(jnp.where(where, this.value, other.value), jnp.where(where, this.token, other.token))
