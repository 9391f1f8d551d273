"""The draw: one token per row.

Work follows need. A batch of greedy rows is an argmax. Rows that use neither top-k nor top-p need no order: the largest of
logit plus Gumbel noise is a draw from the softmax. If top-k or top-p leave at most 64 tokens in every sampled row, only those
get noise. All routes see the same random words, so a row's token doesn't depend on which route its neighbours caused.

Under tensor parallelism every branch is taken on values that all ranks share: a rank that went its own way would wait for the
others forever.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.sampling.adjust import adjusted_logits
from onecat_jax.sampling.counts import TokenCounts
from onecat_jax.sampling.cut import Head, find_head, finish_cut, needs_order
from onecat_jax.sampling.randomness import STREAM_TARGET, gumbel, gumbel_noise, token_words
from onecat_jax.sampling.search import apply_cut
from onecat_jax.sampling.state import SamplingState
from onecat_jax.sampling.transforms import scaled_logits
from onecat_jax.sampling.vocabulary import Vocabulary
from onecat_jax.sharding import WHOLE, Shards


def sample(
    logits: Array,
    state: SamplingState,
    positions: Array,
    *,
    vocab_size: int,
    banned: Array | None = None,
    allowed: Array | None = None,
    history: TokenCounts | None = None,
    shards: Shards = WHOLE,
    stream: int = STREAM_TARGET,
) -> Array:
    """Picks the next token of every row.

    Args:
      logits: [B, V], any float type; computed in float32. Under tensor parallelism the rank's slice of V, as in `banned`,
        `allowed` and `history`.
      state: settings of the rows.
      positions: int32 [B], absolute position of the token being picked.
      vocab_size: ids from here on (of the whole vocabulary) are padding and never picked.
      banned: bool [V], True = never picked (a mask token, holes of the vocabulary).
      allowed: bool [B, V], False = not picked by that row (a grammar).
      history: tokens so far; None = no row has penalties.
      shards: the ranks that share V.
      stream: random stream, see `randomness`.
    Returns:
      int32 [B], the same on all ranks. A row for which `healthy_rows` is False gets some id below V that means nothing.
    """
    vocabulary = Vocabulary(shards)
    with jax.named_scope("sample"):
        x = adjusted_logits(
            logits,
            state,
            positions,
            vocab_size=vocab_size,
            banned=banned,
            allowed=allowed,
            history=history,
            vocabulary=vocabulary,
        )
        largest, greedy = vocabulary.first_argmax(x)
        drawn = state.temperature > 0

        def draw() -> Array:
            scaled = scaled_logits(x, largest, state.temperature, state.min_p)
            tokens = _draw(scaled, state, positions, drawn, stream, vocabulary)
            return jnp.where(drawn, tokens, greedy)

        return lax.cond(jnp.any(drawn), draw, lambda: greedy)


def _draw(
    scaled: Array,
    state: SamplingState,
    positions: Array,
    drawn: Array,
    stream: int,
    vocabulary: Vocabulary,
) -> Array:
    """Tokens [B] of the drawn rows; the other rows hold any id."""
    active = needs_order(state.top_k, state.top_p, vocabulary.size(scaled)) & drawn
    head = find_head(scaled, state.top_k, state.top_p, active, vocabulary)

    def from_all() -> Array:
        cut = finish_cut(scaled, state.top_k, state.top_p, head, active, vocabulary)
        return pick(apply_cut(scaled, cut, vocabulary), state, positions, stream, vocabulary)

    def from_head() -> Array:
        return pick_head(head, state, positions, stream)

    short = jnp.all((active & head.resolved) | ~drawn)
    return lax.cond(short, from_head, from_all)


def pick(
    scaled: Array, state: SamplingState, positions: Array, stream: int, vocabulary: Vocabulary
) -> Array:
    """Gumbel argmax over the vocabulary; equal scores go to the lower id."""
    offset, size = vocabulary.offset(scaled), scaled.shape[-1]
    noise = gumbel_noise(state.seed, positions, stream, size=size, offset=offset)
    return vocabulary.first_argmax(scaled + noise)[1]


def pick_head(head: Head, state: SamplingState, positions: Array, stream: int) -> Array:
    """The same argmax over the kept tokens of the head alone: equal scores of finite values give equal tokens."""
    noise = gumbel(token_words(state.seed, positions, head.tokens, stream))
    rank = jnp.arange(head.values.shape[-1])
    scores = jnp.where(rank < head.kept[:, None], head.values + noise, -jnp.inf)
    best = jnp.max(scores, axis=-1, keepdims=True)
    ids = jnp.where(scores == best, head.tokens, jnp.iinfo(jnp.int32).max)
    return jnp.min(ids, axis=-1)


def healthy_rows(logits: Array, *, vocab_size: int, shards: Shards = WHOLE) -> Array:
    """Rows [B] whose logits at real ids hold no NaN and no +inf, and at least one finite number; the same on all ranks."""
    vocabulary = Vocabulary(shards)
    real = vocabulary.ids(logits) < vocab_size
    bad = real & (jnp.isnan(logits) | jnp.isposinf(logits))
    any_bad, any_finite = vocabulary.any(bad, real & jnp.isfinite(logits))
    return ~any_bad & any_finite


def stop_hits(tokens: Array, state: SamplingState) -> Array:
    """Rows [B] whose token [B] is one of their stop ids."""
    return jnp.any((tokens[:, None] == state.stop_ids) & (state.stop_ids >= 0), axis=-1)
