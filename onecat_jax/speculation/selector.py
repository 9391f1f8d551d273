"""The walk over a lattice of candidates: one token per row of a block, each picked behind the one before it.

What the walk would pick behind every candidate is decided for the whole lattice at once; the walk itself only follows indices.
That is possible because noise belongs to a position and a token id, not to the path.
"""

import jax.numpy as jnp
from jax import Array

from onecat_jax.sampling.drafts import Drafts
from onecat_jax.sampling.randomness import STREAM_DRAFT, gumbel, token_words
from onecat_jax.sampling.state import SamplingState

_NO_ID = jnp.iinfo(jnp.int32).max


def walk(
    scores: Array,
    ids: Array,
    position: Array,
    wanted: Array,
    sampling: SamplingState,
    *,
    greedy: bool = False,
) -> Drafts:
    """Picks a chain of drafts.

    A row with temperature T draws step j from softmax(scores[j, before] / T) by the largest sum of it and Gumbel noise, and
    keeps that distribution as q. A greedy row takes the best score, of equal ones that of the lowest id. A step whose scores
    are NaN, or all -inf, ends the chain before it.

    Args:
      scores: float32 [B, K, P, U], step, candidate before, candidate; P is 1 where nothing depends on the one before.
      ids: int32 [B, K, U] candidates, none twice in a step.
      position: int32 [B] absolute position of the token before the first step.
      wanted: int32 [B] drafts at most.
      sampling: settings of the rows.
      greedy: take the best scores of rows with a temperature too; q is a point mass then.
    """
    steps = ids.shape[1]
    hot = jnp.zeros(position.shape, bool) if greedy else sampling.temperature > 0
    sane = jnp.all(~jnp.isnan(scores), axis=-1) & jnp.any(scores > -jnp.inf, axis=-1)  # [B, K, P]
    logits = _tempered(jnp.where(jnp.isnan(scores), -jnp.inf, scores), sampling.temperature, hot)
    noise = jnp.where(hot[:, None, None], _noise(sampling.seed, position, ids), 0.0)
    picks = _first_best(logits + noise[:, :, None], ids[:, :, None])
    before = _follow(picks)  # [B, K + 1] candidate before each step, and the last one
    index = jnp.minimum(before[:, :-1], scores.shape[2] - 1)
    rows = jnp.take_along_axis(logits, index[..., None, None], axis=2, mode="clip")[
        :, :, 0
    ]  # [B, K, U]
    taken = jnp.arange(ids.shape[2]) == before[:, 1:, None]
    mass = jnp.where(taken, 0.0, -jnp.inf)
    log_q = jnp.where(hot[:, None, None], _log_softmax(rows), mass)
    tokens = jnp.sum(jnp.where(taken, ids, 0), axis=-1, dtype=jnp.int32)
    good = jnp.take_along_axis(sane, index[..., None], axis=2, mode="clip")[:, :, 0]
    length = jnp.min(jnp.where(good, steps, jnp.arange(steps)), axis=-1)
    return Drafts(tokens, ids, log_q, jnp.minimum(wanted, length).astype(jnp.int32))


def _tempered(scores: Array, temperature: Array, hot: Array) -> Array:
    """(x - max x) / T of hot rows, for any T > 0; the others as they are."""
    best = jnp.max(scores, axis=-1, keepdims=True)
    divisor = jnp.where(hot, temperature, 1.0)[:, None, None, None]
    scaled = (scores - jnp.where(jnp.isfinite(best), best, 0.0)) / divisor
    return jnp.where(hot[:, None, None, None], scaled, scores)


def _noise(seed: Array, position: Array, ids: Array) -> Array:
    """Gumbel noise [B, K, U] of token ids at the positions behind `position`."""
    batch, steps, count = ids.shape
    at = (position[:, None] + 1 + jnp.arange(steps, dtype=jnp.int32)).reshape(-1)
    words = token_words(
        jnp.repeat(seed, steps, axis=0), at, ids.reshape(batch * steps, count), STREAM_DRAFT
    )
    return gumbel(words).reshape(ids.shape)


def _first_best(x: Array, ids: Array) -> Array:
    """Index of the largest along the last axis, of equal ones that with the lowest id."""
    best = x == jnp.max(x, axis=-1, keepdims=True)
    ids = jnp.where(best, ids, _NO_ID)
    return jnp.argmin(ids, axis=-1).astype(jnp.int32)


def _follow(picks: Array) -> Array:
    """Indices [B, K + 1] along the path that starts at index 0; picks [B, K, P] what follows each candidate before a step."""
    at = jnp.zeros(picks.shape[0], jnp.int32)
    path = [at]
    for step in range(picks.shape[1]):
        index = jnp.minimum(at, picks.shape[2] - 1)
        at = jnp.take_along_axis(picks[:, step], index[:, None], axis=1, mode="clip")[:, 0]
        path.append(at)
    return jnp.stack(path, axis=1)


def _log_softmax(x: Array) -> Array:
    """Over the last axis, for rows whose largest value is 0 or that have none."""
    return x - jnp.log(jnp.sum(jnp.exp(x), axis=-1, keepdims=True))
