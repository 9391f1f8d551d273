"""Which tokens each sequence has seen, for penalties: one count per slot and token id."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

PROMPT = 1  # the lowest bit: the token is in the prompt
GENERATED = 2  # one generated occurrence


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TokenHistory:
    """Counts of the tokens that were fed to the model. Slot 0 is padding.

    Under tensor parallelism a rank holds the counts of its own slice of the vocabulary.
    """

    counts: Array  # [slots, V] int32: GENERATED * times generated + PROMPT if it is in the prompt

    @staticmethod
    def zeros(slots: int, vocab: int) -> "TokenHistory":
        return TokenHistory(jnp.zeros((slots, vocab), jnp.int32))


@dataclass(frozen=True)
class FedTokens:
    """New rows of a batch of sequences, as the history wants them."""

    tokens: Array  # [B, T] int32
    start: Array  # [B] int32 absolute position of the first; a sequence at 0 starts with an empty history
    count: Array  # [B] int32 real rows
    slots: Array  # [B] int32
    prompt_length: Array  # [B] int32: tokens at smaller positions belong to the prompt
    wanted: Array  # [B] bool: rows that use penalties; the others leave their slot alone


def record(history: TokenHistory, fed: FedTokens, offset: Array | int) -> TokenHistory:
    """Counts fed tokens, in place.

    Args:
      history: donate it.
      fed: what was fed.
      offset: first id of this rank's slice of the vocabulary.
    """
    live = fed.wanted & (fed.count > 0)
    order = jnp.argsort(
        ~live, stable=True
    )  # a loop over live rows alone updates the counts in place

    def row(i: Array, counts: Array) -> Array:
        return _record_row(counts, fed, order[i], offset)

    return TokenHistory(lax.fori_loop(0, jnp.sum(live), row, history.counts))


def _record_row(counts: Array, fed: FedTokens, b: Array, offset: Array | int) -> Array:
    slot, start = fed.slots[b], fed.start[b]
    size = counts.shape[1]
    position = start + jnp.arange(fed.tokens.shape[1], dtype=jnp.int32)
    local = fed.tokens[b] - offset
    inside = (local >= 0) & (local < size) & (position < start + fed.count[b])
    in_prompt = inside & (position < fed.prompt_length[b])
    old = jnp.where(start == 0, 0, lax.dynamic_index_in_dim(counts, slot, keepdims=False))
    marked = old.at[jnp.where(in_prompt, local, size)].set(
        old[jnp.clip(local, 0, size - 1)] | PROMPT, mode="drop"
    )
    new = marked.at[jnp.where(inside & ~in_prompt, local, size)].add(GENERATED, mode="drop")
    return lax.dynamic_update_index_in_dim(counts, new, slot, 0)
