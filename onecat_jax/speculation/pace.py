"""How many drafts a request should have next: none while drafting doesn't pay, more while it copies.

Per request as if it ran alone, from its own past and in whole numbers, so that neighbours, launches and batch sizes change
nothing.

- Rest: the mean length of its drafted rounds is followed; below a least length it drafts nothing for some rounds, then it tries
  again.
- Long rounds: a request that finished two full rounds in a row, with text to copy behind each (`ready`), gets longer ones. They
  are held for a few rounds more when that stops, for getting back takes two full rounds again.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

_UNIT = 256  # of mean lengths, which are whole numbers
_SHIFT = 3  # a round counts for an eighth of the mean


@dataclass(frozen=True)
class Pacing:
    """Static choices.

    Attributes:
      drafts: of a normal round.
      long_drafts: of a long round; 0 for no long rounds.
      least: tokens per drafted round, in the mean, from which drafting pays; 0 = it always does.
      rest: rounds without drafts when it doesn't.
      entry: full rounds in a row, with text to copy, until rounds are long.
      hold: rounds that they stay long after that.
    """

    drafts: int
    long_drafts: int = 0
    least: float = 1.2
    rest: int = 32
    entry: int = 2
    hold: int = 3

    @property
    def least_units(self) -> int:
        """`least` in the unit of means."""
        return round(self.least * _UNIT)


NO_PACING = Pacing(drafts=0)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pace:
    """What is known of each request."""

    most: Array  # [B] int32 drafts that the request may have
    mean: Array  # [B] int32 tokens of a drafted round, in 1/256
    resting: Array  # [B] int32 rounds that are still left without drafts
    streak: Array  # [B] int32 full rounds in a row
    held: Array  # [B] int32 rounds that stay long although the last ones weren't full
    long: Array  # [B] int32 1 if rounds are long

    @staticmethod
    def start(most: Any, pacing: Pacing) -> "Pace":
        """Of new requests that may have `most` [B] drafts: optimistic. NumPy arrays stay NumPy arrays."""
        zero = most * 0
        mean = zero + (pacing.drafts + 1) * _UNIT
        return Pace(most, mean, zero, zero, zero, zero)

    def wanted(self, pacing: Pacing) -> Array:
        """Drafts of the next round at most: int32 [B]."""
        drafts = jnp.where(self.long > 0, pacing.long_drafts, pacing.drafts)
        return jnp.minimum(self.most, jnp.where(self.resting > 0, 0, drafts)).astype(jnp.int32)


def advance(
    pace: Pace, pacing: Pacing, *, running: Array, drafted: Array, emitted: Array, ready: Array
) -> Pace:
    """After a round.

    Args:
      pace: before it.
      pacing: static.
      running: bool [B] rows that it ran for; the others stay as they are.
      drafted: int32 [B] drafts that it verified.
      emitted: int32 [B] tokens that it gave.
      ready: bool [B] rows whose text has something to copy behind the next round's block.
    """
    mean, resting = _rest(pace, pacing, drafted > 0, emitted)
    full = ready & (emitted >= pacing.drafts + 1)
    streak, held, long = _lengthen(pace, pacing, full)
    new = Pace(pace.most, mean, resting, streak, held, long)
    return jax.tree.map(lambda new, old: jnp.where(running, new, old), new, pace)


def _rest(pace: Pace, pacing: Pacing, drafted: Array, emitted: Array) -> tuple[Array, Array]:
    """The mean and the rounds of rest."""
    moved = pace.mean + ((emitted * _UNIT - pace.mean) >> _SHIFT)
    mean = jnp.where(drafted, moved, pace.mean)
    tired = drafted & (mean < pacing.least_units)
    resting = jnp.where(tired, pacing.rest, jnp.maximum(pace.resting - 1, 0))
    # The first rounds after a rest are to show something: the mean starts where a few bad ones end it.
    mean = jnp.where(pace.resting == 1, pacing.least_units + _UNIT, mean)
    return mean.astype(jnp.int32), resting.astype(jnp.int32)


def _lengthen(pace: Pace, pacing: Pacing, full: Array) -> tuple[Array, Array, Array]:
    """Streak, rounds held, and whether rounds are long."""
    if not pacing.long_drafts:
        return pace.streak, pace.held, pace.long
    streak = jnp.where(full, pace.streak + 1, 0)
    entered = streak >= pacing.entry
    kept = ~full & (pace.long > 0) & (pace.held > 0)
    long = jnp.where(full, entered | (pace.long > 0), kept)
    held = jnp.where(entered, pacing.hold, jnp.where(kept, pace.held - 1, pace.held))
    held = jnp.where(long, held, 0)
    return streak, held.astype(jnp.int32), long.astype(jnp.int32)
