"""The draw: one token per row.

Work follows need. A batch of greedy rows is an argmax. Rows that use neither top-k nor top-p need no order: the largest of
logit plus Gumbel noise is a draw from the softmax. If top-k or top-p leave at most 64 tokens in every sampled row, only those
get noise. All routes see the same random words, so a row's token doesn't depend on which route its neighbours caused.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.sampling.counts import SlotCounts
from onecat_jax.sampling.cut import Head, empty_head, finish_cut, head_of, needs_order
from onecat_jax.sampling.randomness import STREAM_TARGET, gumbel, gumbel_noise, token_words
from onecat_jax.sampling.search import apply_cut
from onecat_jax.sampling.state import SamplingState
from onecat_jax.sampling.transforms import clean, scaled_logits
from onecat_jax.sharding import WHOLE, Shards


def sample(
    logits: Array,
    state: SamplingState,
    positions: Array,
    *,
    vocab_size: int,
    banned: Array | None = None,
    history: SlotCounts | None = None,
    shards: Shards = WHOLE,
    stream: int = STREAM_TARGET,
) -> Array:
    """Picks the next token of every row.

    Args:
      logits: [B, V], any float type; computed in float32.
      state: settings of the rows.
      positions: int32 [B], absolute position of the token being picked.
      vocab_size: ids from here on are padding and never picked.
      banned: bool [V], True = never picked (a mask token, holes of the vocabulary).
      stream: random stream, see `randomness`.
    Returns:
      int32 [B]. A row for which `healthy_rows` is False gets some id below V that means nothing.
    """
    with jax.named_scope("sample"):
        allowed = allowed_logits(logits, vocab_size=vocab_size, banned=banned)
        allowed = _without_early_stops(allowed, state, positions)
        greedy = first_argmax(allowed)
        drawn = state.temperature > 0

        def draw() -> Array:
            return jnp.where(drawn, _draw(allowed, state, positions, drawn, stream), greedy)

        return lax.cond(jnp.any(drawn), draw, lambda: greedy)


def allowed_logits(logits: Array, *, vocab_size: int, banned: Array | None = None) -> Array:
    """Cleaned float32 logits [B, V] with padding and banned ids at -inf."""
    kept = jnp.arange(logits.shape[-1]) < vocab_size
    if banned is not None:
        kept = kept & ~banned
    return jnp.where(kept, clean(logits), -jnp.inf)


def _without_early_stops(logits: Array, state: SamplingState, positions: Array) -> Array:
    """Takes the stop ids away from rows that haven't reached min_tokens."""
    early = positions < state.min_position

    def remove() -> Array:
        size = logits.shape[-1]
        hit = early[:, None] & (state.stop_ids >= 0)
        ids = jnp.where(hit, state.stop_ids, size)
        rows = jnp.arange(logits.shape[0])[:, None]
        return logits.at[rows, ids].set(-jnp.inf, mode="drop")

    return lax.cond(jnp.any(early), remove, lambda: logits)


def _draw(
    logits: Array, state: SamplingState, positions: Array, drawn: Array, stream: int
) -> Array:
    """Tokens [B] of the drawn rows; the other rows hold any id."""
    scaled = scaled_logits(logits, state.temperature, state.min_p)
    active = needs_order(state.top_k, state.top_p, logits.shape[-1]) & drawn
    head = lax.cond(
        jnp.any(active),
        lambda: head_of(scaled, state.top_k, state.top_p),
        lambda: empty_head(scaled),
    )

    def from_all() -> Array:
        cut = finish_cut(scaled, state.top_k, state.top_p, head, active)
        return _pick(apply_cut(scaled, cut), state, positions, stream)

    def from_head() -> Array:
        return _pick_head(head, state, positions, stream)

    short = jnp.all((active & head.resolved) | ~drawn)
    return lax.cond(short, from_head, from_all)


def _pick(scaled: Array, state: SamplingState, positions: Array, stream: int) -> Array:
    """Gumbel argmax over the vocabulary; equal scores go to the lower id."""
    noise = gumbel_noise(state.seed, positions, stream, size=scaled.shape[-1])
    return first_argmax(scaled + noise)


def first_argmax(x: Array) -> Array:
    """Lowest index of the largest value, [B, N] without NaN -> int32 [B].

    Two plain reductions, which vectorise on CPU where the one of jnp.argmax doesn't.
    """
    ids = lax.broadcasted_iota(jnp.int32, x.shape, 1)
    best = jnp.max(x, axis=-1, keepdims=True)
    return jnp.min(jnp.where(x == best, ids, x.shape[1] - 1), axis=-1)


def _pick_head(head: Head, state: SamplingState, positions: Array, stream: int) -> Array:
    """The same argmax over the kept tokens of the head alone."""
    noise = gumbel(token_words(state.seed, positions, head.tokens, stream))
    rank = jnp.arange(head.values.shape[-1])
    scores = jnp.where(rank < head.kept[:, None], head.values + noise, -jnp.inf)
    best = jnp.max(scores, axis=-1, keepdims=True)
    ids = jnp.where(scores == best, head.tokens, jnp.iinfo(jnp.int32).max)
    return jnp.min(ids, axis=-1)


def healthy_rows(logits: Array, *, vocab_size: int, shards: Shards = WHOLE) -> Array:
    """Rows [B] whose logits at real ids hold no NaN and no +inf, and at least one finite number."""
    real = logits[:, :vocab_size]
    bad = jnp.isnan(real) | jnp.isposinf(real)
    return ~jnp.any(bad, axis=-1) & jnp.any(jnp.isfinite(real), axis=-1)


def stop_hits(tokens: Array, state: SamplingState) -> Array:
    """Rows [B] whose token [B] is one of their stop ids."""
    return jnp.any((tokens[:, None] == state.stop_ids) & (state.stop_ids >= 0), axis=-1)
