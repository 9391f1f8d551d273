"""What the penalties of a batch read: token counts by slot, and those of rows whose tokens aren't recorded yet."""

from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import Array

from onecat_jax.state.history import GENERATED, PROMPT


class TokenCounts(Protocol):
    """Anything that can say what each row has seen."""

    def rows(self) -> tuple[Array, Array]:
        """Times each token was generated, int32 [B, V], and whether it was seen at all, prompt included, bool [B, V]."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SlotCounts:
    """Counts of all slots and the slot of each batch row; encoded as in `state.history`."""

    counts: Array  # [slots, V] int32, the rank's slice of V
    slots: Array  # [B] int32

    def rows(self) -> tuple[Array, Array]:
        """Times each token was generated, int32 [B, V], and whether it was seen at all, prompt included, bool [B, V]."""
        return _decoded(self.counts[self.slots])


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RoundCounts:
    """Counts of the Q rows of every request in a round: what `state.history.record` would make of the tokens up to each row.

    Row i of a request has seen what its slot holds and the first i + 1 tokens of the round. Nothing is recorded.
    """

    counts: Array  # [slots, V] int32, the rank's slice of V
    slots: Array  # [B] int32
    columns: Array  # [B, Q] int32 columns of the tokens of the round, V for those of other ranks
    start: Array  # [B] int32 absolute position of the first of them; 0 = the slot counts as empty
    prompt_length: Array  # [B] int32, tokens at smaller positions belong to the prompt

    def rows(self) -> tuple[Array, Array]:
        """As `SlotCounts.rows`, for B * Q rows."""
        (batch, width), size = self.columns.shape, self.counts.shape[1]
        old = jnp.where((self.start == 0)[:, None], 0, self.counts[self.slots])
        step = jnp.arange(width, dtype=jnp.int32)
        in_prompt = (self.start[:, None] + step < self.prompt_length[:, None])[:, None]
        fed = step <= step[:, None]  # [row, token]
        columns = self.columns[:, None]
        known = jnp.take_along_axis(old, jnp.minimum(self.columns, size - 1), axis=1)[:, None]
        at = (jnp.arange(batch)[:, None, None], step[:, None])
        counts = jnp.broadcast_to(old[:, None], (batch, width, size))
        counts = counts.at[*at, jnp.where(fed & in_prompt, columns, size)].set(
            known | PROMPT, mode="drop"
        )
        counts = counts.at[*at, jnp.where(fed & ~in_prompt, columns, size)].add(
            GENERATED, mode="drop"
        )
        return _decoded(counts.reshape(batch * width, size))


def _decoded(counts: Array) -> tuple[Array, Array]:
    return counts // GENERATED, counts > 0
