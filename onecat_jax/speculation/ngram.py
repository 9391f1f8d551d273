"""Drafters that look the last tokens up in the text: alone, or on top of a drafter of blocks."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
from jax import Array

from onecat_jax.sampling import SamplingState
from onecat_jax.sampling.drafts import Drafts, point_masses
from onecat_jax.speculation.interface import Committed, Drafter, DraftRows
from onecat_jax.speculation.lookup import Match, Text, follow, record, search
from onecat_jax.speculation.params import EngineParams
from onecat_jax.state import CacheState


@dataclass(frozen=True)
class LookupDrafter:
    """A `Drafter` without a model: what followed the longest earlier occurrence of the last tokens, the latest of those.

    Attributes:
      drafts: tokens proposed at most.
      shortest, longest: tokens that must be alike, and that are compared at most.
    """

    drafts: int
    shortest: int
    longest: int

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(
                f"a lookup needs 1 <= shortest <= longest, got {self.shortest}, {self.longest}"
            )

    @property
    def taps(self) -> tuple[int, ...]:
        """None: only tokens are kept."""
        return ()

    def draft(
        self,
        params: EngineParams,
        state: CacheState,
        rows: DraftRows,
        sampling: SamplingState,
        banned: Array,
    ) -> tuple[Drafts, CacheState]:
        """See `Drafter`. Banned tokens of a text are proposed, and refused."""
        text = _text(state, rows)
        match = search(text, rows.wanted > 0, least=self.shortest, most=self.longest)
        tokens, valid = follow(text, match, self.drafts)
        return point_masses(tokens, jnp.minimum(rows.wanted, valid)), state

    def commit(self, params: EngineParams, state: CacheState, rows: Committed) -> CacheState:
        """See `Drafter`."""
        return _recorded(state, rows)


@dataclass(frozen=True)
class LookupLimits:
    """Tokens of a match that are needed, and compared.

    Attributes:
      head: to propose what followed it in the place of the block's own drafts.
      tail: to propose what followed it behind the block.
      long: to ask for rounds with a tail (`pace`).
      longest: compared at most.
    """

    head: int = 6
    tail: int = 4
    long: int = 6
    longest: int = 12

    def __post_init__(self) -> None:
        if not 1 <= self.tail <= self.head <= self.long <= self.longest:
            raise ValueError(f"1 <= tail <= head <= long <= longest is needed, got {self}")


@dataclass(frozen=True)
class LookupBlockDrafter:
    """A `Drafter` of blocks whose head is replaced, and which gets a tail, where the text repeats itself.

    Attributes:
      block: proposes the first tokens, as many as its model was trained for.
      drafts: places in all; as many as the block's for none behind it.
    """

    block: Drafter
    drafts: int = 15
    limits: LookupLimits = LookupLimits()

    def __post_init__(self) -> None:
        if self.drafts < self.block.drafts:
            raise ValueError(
                f"{self.drafts} places don't hold the {self.block.drafts} drafts of a block"
            )

    @property
    def taps(self) -> tuple[int, ...]:
        """Those of the block's drafter."""
        return self.block.taps

    def ready(self, state: CacheState, rows: DraftRows) -> Array:
        """Rows [B] whose text has something for a tail: what the controller of widths (`pace`) wants to know."""
        match = self._match(_text(state, rows), rows)
        return (match.length >= self.limits.long) & (rows.position - match.end > self.block.drafts)

    def draft(
        self,
        params: EngineParams,
        state: CacheState,
        rows: DraftRows,
        sampling: SamplingState,
        banned: Array,
    ) -> tuple[Drafts, CacheState]:
        """See `Drafter`. The block isn't computed for rows whose text supplies all of the head."""
        tokens, match, valid = self._looked_up(state, rows)
        head = match.length >= self.limits.head
        own = jnp.minimum(rows.wanted, self.block.drafts)
        supplied = head & (valid >= own)
        block_rows = replace(rows, wanted=jnp.where(supplied, 0, own))
        block, state = self.block.draft(params, state, block_rows, sampling, banned)
        return fuse(block, tokens, match, valid, rows.wanted, self.limits), state

    def commit(self, params: EngineParams, state: CacheState, rows: Committed) -> CacheState:
        """See `Drafter`."""
        return _recorded(self.block.commit(params, state, rows), rows)

    def _looked_up(self, state: CacheState, rows: DraftRows) -> tuple[Array, Match, Array]:
        """Tokens [B, drafts] that may follow, the match they come from, and how many [B] they are."""
        text = _text(state, rows)
        match = self._match(text, rows)
        tokens, valid = follow(text, match, self.drafts)
        return tokens, match, valid

    def _match(self, text: Text, rows: DraftRows) -> Match:
        limits = self.limits
        return search(text, rows.wanted > 0, least=limits.tail, most=limits.longest)


def fuse(
    block: Drafts, tokens: Array, match: Match, valid: Array, wanted: Array, limits: LookupLimits
) -> Drafts:
    """A block of drafts with what the text supplies in its head and behind it.

    What is replaced follows from the text alone. A tail may also follow from the drafts of the block, if all of them agree with
    the text. They keep their q then: a decision that looks at a drawn token may not call it certain afterwards. The tail is
    certain, for it is decided by what stands before it.

    Args:
      block: K drafts.
      tokens: int32 [B, N] what followed the match, N >= K.
      match: of each row.
      valid: int32 [B] how many of the tokens count.
      wanted: int32 [B] drafts at most.
      limits: when to believe a match.
    """
    own, width = block.tokens.shape[1], tokens.shape[1]
    place = jnp.arange(width)
    padded = jnp.pad(block.tokens, ((0, 0), (0, width - own)))
    head = match.length >= limits.head
    alike = (padded == tokens)[:, :own] & (place[:own] < jnp.minimum(valid, block.count)[:, None])
    tail = (match.length >= limits.tail) & (head | jnp.all(alike, axis=-1))
    looked = jnp.where(place < own, head[:, None], tail[:, None]) & (place < valid[:, None])
    chosen = jnp.where(looked, tokens, padded)
    certain = looked | (place >= own)
    mass = point_masses(chosen, wanted, block.ids.shape[2])
    grow = ((0, 0), (0, width - own), (0, 0))
    ids = jnp.where(certain[..., None], mass.ids, jnp.pad(block.ids, grow))
    log_q = jnp.where(certain[..., None], mass.log_q, jnp.pad(block.log_q, grow))
    first = jnp.maximum(block.count, jnp.where(head, jnp.minimum(valid, own), 0))
    count = first + jnp.where(tail & (first == own), jnp.maximum(valid - own, 0), 0)
    return Drafts(chosen, ids, log_q, jnp.minimum(wanted, count))


def _text(state: CacheState, rows: DraftRows) -> Text:
    assert state.draft.tokens is not None, "the state of a lookup drafter has tokens"
    return Text(state.draft.tokens, rows.slots, rows.position, rows.token)


def _recorded(state: CacheState, rows: Committed) -> CacheState:
    assert state.draft.tokens is not None, "the state of a lookup drafter has tokens"
    tokens = record(state.draft.tokens, rows.tokens, rows.start, rows.count, rows.slots)
    return replace(state, draft=replace(state.draft, tokens=tokens))
