"""From raw to adjusted logits: penalties, logit_bias and the ids that may not be picked. Greedy rows see these too.

Penalties, biases and min_tokens are rare. One condition guards them all, so a batch without them pays for a test of a few
numbers per row.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.sampling.counts import TokenCounts
from onecat_jax.sampling.penalties import apply_bias, apply_penalties
from onecat_jax.sampling.state import SamplingState
from onecat_jax.sampling.transforms import clean
from onecat_jax.sampling.vocabulary import ALL_IDS, Vocabulary


def adjusted_logits(
    logits: Array,
    state: SamplingState,
    positions: Array,
    *,
    vocab_size: int,
    banned: Array | None = None,
    allowed: Array | None = None,
    history: TokenCounts | None = None,
    vocabulary: Vocabulary = ALL_IDS,
) -> Array:
    """Cleaned float32 logits [B, V] after penalties and biases, with every id at -inf that may not be picked.

    Args: as `draw.sample`.
    """
    x = _possible(logits, vocab_size, banned, allowed, vocabulary)
    early = positions < state.min_position
    penalised = state.penalised if history is not None else jnp.zeros_like(early)

    def adjust() -> Array:
        y = x
        if history is not None:
            y = _where_any(penalised, lambda z: clean(apply_penalties(z, state, history)), y)
        y = _where_any(state.biased, lambda z: clean(apply_bias(z, state, vocabulary)), y)
        return _where_any(early, lambda z: _without_stops(z, state, early, vocabulary), y)

    return lax.cond(jnp.any(penalised | state.biased | early), adjust, lambda: x)


def _where_any(rows: Array, change: Callable[[Array], Array], x: Array) -> Array:
    return lax.cond(jnp.any(rows), change, lambda unchanged: unchanged, x)


def _possible(
    logits: Array,
    vocab_size: int,
    banned: Array | None,
    allowed: Array | None,
    vocabulary: Vocabulary,
) -> Array:
    """Cleaned float32 logits [B, V] with ids that are out of the question at -inf, where penalties and biases leave them."""
    kept = vocabulary.ids(logits) < vocab_size
    if banned is not None:
        kept = kept & ~banned
    if allowed is not None:
        kept = kept & allowed
    return jnp.where(kept, clean(logits), -jnp.inf)


def _without_stops(
    logits: Array, state: SamplingState, early: Array, vocabulary: Vocabulary
) -> Array:
    """Takes the stop ids away from rows that haven't reached min_tokens."""
    ids = jnp.where(early[:, None], state.stop_ids, -1)
    rows = jnp.arange(logits.shape[0])[:, None]
    return logits.at[rows, vocabulary.columns(logits, ids)].set(-jnp.inf, mode="drop")
