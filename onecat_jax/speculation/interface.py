"""What a drafter is, and what it is given."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax
from jax import Array

from onecat_jax.sampling import SamplingState
from onecat_jax.sampling.drafts import Drafts
from onecat_jax.speculation.params import EngineParams
from onecat_jax.state import CacheState


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DraftRows:
    """Requests that drafts are wanted for. An empty batch row has wanted 0 and slot 0."""

    token: Array  # [B] int32 bonus token, not yet in the state
    position: Array  # [B] int32 its absolute position = tokens in the state
    wanted: Array  # [B] int32 drafts at most; 0 = none
    slots: Array  # [B] int32
    table: Array  # [B, P] int32 pages of the target's cache


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Committed:
    """Rows that have become part of their sequences: a chunk of a prompt, or the accepted rows of a round."""

    tokens: Array  # [B, T] int32
    next_tokens: Array  # [B, T] int32 the token after each row
    hidden: Array  # [B, T, E] float32 the target's rows after its final norm
    taps: Array | None  # [A, B, T, E] float32 outputs of the tapped layers
    start: Array  # [B] int32 absolute position of the first row
    count: Array  # [B] int32 rows that are meant, the first ones
    slots: Array  # [B] int32
    table: Array  # [B, P] int32


class Drafter(Protocol):
    """Static and hashable. All of it runs inside the device loop, once per tensor-parallel rank."""

    @property
    def drafts(self) -> int:
        """Drafts of a full round; Q - 1."""
        ...

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers of the target whose outputs `commit` wants."""
        ...

    def draft(
        self,
        params: EngineParams,
        state: CacheState,
        rows: DraftRows,
        sampling: SamplingState,
        banned: Array,
    ) -> tuple[Drafts, CacheState]:
        """Proposes a chain per row: Drafts with `drafts` places, at most rows.wanted of them meant.

        Args:
          params: weights.
          state: donate it; only what a later round overwrites may change.
          rows: the requests.
          sampling: their settings.
          banned: bool [V] ids that are never sampled (the rank's slice).
        """
        ...

    def commit(self, params: EngineParams, state: CacheState, rows: Committed) -> CacheState:
        """Takes rows into what the drafter keeps."""
        ...


@runtime_checkable
class Extending(Protocol):
    """A drafter that can say whether rounds beyond the ordinary width have something to verify."""

    def ready(self, state: CacheState, rows: DraftRows) -> Array:
        """Rows [B] bool for which it has."""
        ...
