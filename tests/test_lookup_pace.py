"""When a request drafts, and how much, is the published machine of states per request, and a rest where drafting doesn't pay.

Oracles: a table of rounds worked out by hand; a transcription in plain Python, on random rounds. Covered: entering and holding
long rounds, rests and what follows them, rows that don't run, limits of a request. Not covered: whether the numbers are good.
"""

from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onecat_jax.speculation.pace import Pace, Pacing, advance

LONG = Pacing(drafts=7, long_drafts=15, least=0.0)
SHORT = Pacing(drafts=4, least=1.5)


def column(*values: int) -> jax.Array:
    return jnp.asarray(values, jnp.int32)


def after(pace: Pace, pacing: Pacing, drafted: int, emitted: int, ready: bool = False) -> Pace:
    flags = {"running": column(1) > 0, "ready": column(ready) > 0}
    return advance(pace, pacing, drafted=column(drafted), emitted=column(emitted), **flags)


# tokens of a round, text to copy behind it -> drafts of the next round
_TRACE = [
    (8, True, 7),  # one full round isn't a copy
    (7, True, 7),  # not full: the streak is over
    (8, True, 7),
    (8, True, 15),  # two in a row
    (16, True, 15),
    (16, False, 15),  # nothing to copy: held, first
    (3, True, 15),  # second
    (1, False, 15),  # third
    (1, False, 7),  # let go
    (8, True, 7),
    (8, False, 7),
    (8, True, 7),
    (8, True, 15),
    (5, True, 15),  # held
    (9, True, 15),  # a full one while held leaves what is left of the hold
    (2, False, 15),
    (2, False, 15),
    (2, False, 7),
    (8, True, 7),
    (8, True, 15),
    (2, False, 15),
    (16, True, 15),
    (16, True, 15),  # entered again: all of the hold is there
    (2, False, 15),
    (2, False, 15),
    (2, False, 15),
    (2, False, 7),
]


def test_long_rounds_come_and_go_as_in_the_table():
    pace = Pace.start(column(15), LONG)
    assert pace.wanted(LONG).tolist() == [7]
    for at, (emitted, ready, expected) in enumerate(_TRACE):
        pace = after(pace, LONG, 7, emitted, ready)
        assert pace.wanted(LONG).tolist() == [expected], at


@dataclass
class Transcript:
    """One request, as prose has it."""

    pacing: Pacing
    most: int
    mean: int = 0
    resting: int = 0
    streak: int = 0
    sticky: int = 0
    long: bool = False

    def __post_init__(self):
        self.mean = (self.pacing.drafts + 1) * 256

    def wanted(self) -> int:
        if self.resting:
            return 0
        return min(self.most, self.pacing.long_drafts if self.long else self.pacing.drafts)

    def round(self, drafted: int, emitted: int, ready: bool) -> None:
        if drafted:
            self.mean += (emitted * 256 - self.mean) // 8
        if drafted and self.mean < self.pacing.least * 256:
            self.resting = self.pacing.rest
        elif self.resting:
            self.resting -= 1
            if not self.resting:
                self.mean = int(self.pacing.least * 256) + 256
        if self.pacing.long_drafts:
            self.lengthen(ready and emitted > self.pacing.drafts)

    def lengthen(self, want: bool) -> None:
        if want:
            self.streak += 1
            if self.streak >= 2:
                self.long, self.sticky = True, 3
            return
        self.streak = 0
        if self.long and self.sticky:
            self.sticky -= 1
        else:
            self.long, self.sticky = False, 0


rounds = st.lists(st.tuples(st.integers(1, 16), st.booleans(), st.booleans()), max_size=120)


@pytest.mark.parametrize("pacing", [LONG, SHORT, Pacing(7, 15, 2.5)], ids=["long", "rest", "both"])
@settings(deadline=None, max_examples=40)
@given(rounds=rounds, most=st.sampled_from([0, 3, 7, 15]))
def test_any_rounds_as_in_the_transcript(pacing, rounds, most):
    step = _compiled(pacing)
    pace, transcript = Pace.start(column(most), pacing), Transcript(pacing, most)
    for emitted, ready, lucky in rounds:
        drafted = transcript.wanted() if lucky else 0
        emitted = min(emitted, drafted + 1)
        pace = step(pace, column(drafted), column(emitted), column(ready))
        transcript.round(drafted, emitted, ready)
        assert pace.wanted(pacing).tolist() == [transcript.wanted()]


@cache
def _compiled(pacing: Pacing):
    def step(pace, drafted, emitted, ready):
        flags = {"running": jnp.ones(1, bool), "ready": ready > 0}
        return advance(pace, pacing, drafted=drafted, emitted=emitted, **flags)

    return jax.jit(step)


def test_a_request_that_gains_nothing_rests_and_tries_again():
    pace = Pace.start(column(4), SHORT)
    wanted = []
    for _ in range(120):
        drafts = int(pace.wanted(SHORT)[0])
        wanted.append(drafts)
        pace = after(pace, SHORT, drafts, 1)
    trial = wanted.index(0)
    assert wanted[:trial] == [4] * trial
    assert 10 <= trial <= 25
    assert wanted[trial : trial + 32] == [0] * 32
    again = wanted[trial + 32 :]
    assert 4 <= again.index(0) <= 12
    assert again[again.index(0) :][:32] == [0] * 32


def test_a_request_that_gains_never_rests():
    pace = Pace.start(column(4), SHORT)
    for at in range(200):
        pace = after(pace, SHORT, 4, 1 + at % 3)
        assert pace.wanted(SHORT).tolist() == [4]


def test_rounds_without_drafts_say_nothing_about_drafting():
    pace = Pace.start(column(4), SHORT)
    for _ in range(100):
        pace = after(pace, SHORT, 0, 1)
    assert pace.mean.tolist() == [5 * 256]


def test_rows_that_don_t_run_stand_still_and_rows_don_t_see_each_other():
    rng = np.random.default_rng(0)
    pacing = Pacing(7, 15, 2.5)
    together = Pace.start(column(15, 15, 15), pacing)
    alone = [Pace.start(column(15), pacing) for _ in range(3)]
    for _ in range(60):
        running, ready = rng.random((2, 3)) < 0.7
        drafted = np.where(running, np.asarray(together.wanted(pacing)), 0)
        emitted = rng.integers(0, drafted + 1) + 1
        together = advance(
            together,
            pacing,
            running=jnp.asarray(running),
            drafted=column(*drafted),
            emitted=column(*emitted),
            ready=jnp.asarray(ready),
        )
        for b in np.flatnonzero(running):
            alone[b] = after(alone[b], pacing, drafted[b], emitted[b], ready[b])
    for b in range(3):
        mine = jax.tree.map(lambda a, b=b: a[b : b + 1].tolist(), together)
        assert mine == jax.tree.map(lambda a: a.tolist(), alone[b])
