"""What the text supplies replaces drafts and follows them by the published thresholds, and never at the cost of exactness.

Oracles: a transcription in plain Python; and the law of the first tokens, summed exactly over everything that a block may
propose and accepted by the rule in NumPy: it must be the target's. A fusion that calls an agreeing draft certain is shown to
break that law. Covered: heads, tails, agreement, wanted drafts, the drafters around them. Not covered: a real block drafter.
"""

from dataclasses import dataclass, replace
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onecat_jax.sampling.drafts import Drafts, point_masses
from onecat_jax.speculation.interface import Committed, DraftRows
from onecat_jax.speculation.lookup import Match
from onecat_jax.speculation.ngram import LookupBlockDrafter, LookupDrafter, LookupLimits, fuse
from onecat_jax.state import CacheState, DraftState

LIMITS = LookupLimits()
SHORT, LONG, CANDIDATES = 7, 15, 4


def numbers(*values) -> jax.Array:
    return jnp.asarray(values, jnp.int32)


def block_of(tokens, count: int | None = None, q: float = 0.5) -> Drafts:
    """One row: each token has probability q among four candidates."""
    row = np.asarray(tokens, np.int32)
    ids = row[:, None] + np.arange(CANDIDATES) * 100
    log_q = np.log(np.where(np.arange(CANDIDATES) == 0, q, (1 - q) / (CANDIDATES - 1)))
    shape = (1, len(row), CANDIDATES)
    given = numbers(len(row) if count is None else count)
    return Drafts(
        row[None], jnp.asarray(ids[None]), jnp.broadcast_to(log_q, shape).astype(jnp.float32), given
    )


@jax.jit
def _fused(block, tokens, length, valid, wanted):
    return fuse(block, tokens, Match(length, length), valid, wanted, LIMITS)


def fused(block: Drafts, tokens, length: int, valid: int, wanted: int = LONG) -> Drafts:
    row = jnp.asarray(np.asarray(tokens, np.int32)[None])
    out = _fused(block, row, numbers(length), numbers(valid), numbers(wanted))
    return jax.tree.map(lambda a: np.asarray(a[0]), out)


def transcript(drafted: list[int], looked: list[int], length: int, valid: int, wanted: int):
    """Tokens that are meant, and which of them are certain."""
    head = length >= 6
    agree = 0
    while agree < min(SHORT, valid, len(drafted)) and drafted[agree] == looked[agree]:
        agree += 1
    tail = length >= 4 and (head or agree == SHORT)
    chain, certain = [], []
    for place in range(LONG):
        if place < valid and (head if place < SHORT else tail):
            chain.append(looked[place])
            certain.append(True)
        elif place < len(drafted):
            chain.append(drafted[place])
            certain.append(False)
        else:
            break
    return chain[:wanted], certain[:wanted]


small = st.integers(0, 1)


@settings(deadline=None, max_examples=150)
@given(
    drafted=st.lists(small, max_size=SHORT),
    looked=st.lists(small, min_size=LONG, max_size=LONG),
    length=st.integers(0, 12),
    valid=st.integers(0, LONG),
    wanted=st.integers(0, LONG),
    copied=st.booleans(),
)
def test_any_fusion_as_in_the_transcript(drafted, looked, length, valid, wanted, copied):
    drafted = looked[: len(drafted)] if copied else drafted
    valid = valid if length >= 4 else 0
    length = length if length >= 4 else 0
    block = block_of(drafted + [9] * (SHORT - len(drafted)), len(drafted))
    found = fused(block, looked, length, valid, wanted)
    chain, certain = transcript(drafted, looked, length, valid, wanted)
    assert found.tokens[: found.count].tolist() == chain
    largest = found.log_q.max(-1)[: found.count]
    np.testing.assert_allclose(largest, np.where(certain, 0.0, np.log(0.5)), atol=1e-6)


def test_an_agreeing_head_keeps_its_q_and_every_place_behind_it_is_certain():
    block, looked = block_of(range(SHORT)), list(range(LONG))
    for valid, count in ((LONG, LONG), (10, 10), (7, 7)):
        found = fused(block, looked, 4, valid)
        assert found.count == count
        np.testing.assert_array_equal(found.ids[:SHORT], block.ids[0])
        np.testing.assert_array_equal(found.log_q[:SHORT], block.log_q[0])
        mass = np.where(np.arange(CANDIDATES) == 0, 0.0, -np.inf)
        np.testing.assert_array_equal(found.log_q[SHORT:], np.tile(mass, (LONG - SHORT, 1)))
        np.testing.assert_array_equal(found.ids[SHORT:, 0], found.tokens[SHORT:])


def test_whether_a_head_is_replaced_does_not_depend_on_what_was_drafted():
    rng = np.random.default_rng(0)
    looked = rng.integers(0, 3, LONG)
    for length, valid in ((6, 15), (12, 3), (5, 15), (0, 0)):
        seen = set()
        for drafted in rng.integers(0, 3, (30, SHORT)):
            certain = fused(block_of(drafted), looked, length, valid).log_q[:SHORT].max(-1) == 0
            seen.add(tuple(certain.tolist()))
        assert len(seen) == 1


# -- The law of the first tokens -----------------------------------------------------------------------------------------------

V, K, N = 3, 2, 3


def law_of(chains: list[tuple[float, np.ndarray, np.ndarray, int]], p: np.ndarray) -> np.ndarray:
    """Probability [V, V, V] of the first three tokens when chains are proposed and accepted one by one.

    Args:
      chains: probability, tokens [N], claimed q [N, V], and drafts that count of each.
      p: target [V, V, V] of the next token behind two tokens; rows of the first place use [0, 0].
    """
    law = np.zeros((V, V, V))
    for chance, tokens, q, count in chains:
        for place in range(count + 1):
            before = tuple(tokens[:place])
            row = target(p, before)
            if place == count:
                emit(law, chance, before, row, p)
                break
            token = tokens[place]
            accepted = min(1.0, row[token] / q[place, token])
            residual = np.maximum(row - q[place], 0)
            if accepted < 1:
                emit(law, chance * (1 - accepted), before, residual / residual.sum(), p)
            chance *= accepted
    return law


def emit(law, chance: float, before: tuple, row: np.ndarray, p: np.ndarray) -> None:
    """Adds a round that ends with a token from `row`; the target alone picks what is missing of three."""
    for token in range(V):
        chain = (*before, token)[:3]
        rest = 3 - len(chain)
        for more in product(range(V), repeat=rest):
            weight = chance * row[token]
            for at in range(rest):
                weight *= target(p, (*chain, *more[:at]))[more[at]]
            law[(*chain, *more)] += weight


def target(p: np.ndarray, before: tuple) -> np.ndarray:
    first, second = ((0, 0) + tuple(before))[-2:]
    return p[first, second]


def proposals(q: np.ndarray, looked, length: int, certain_if_alike: bool = False):
    """Every chain that a block with distributions q [K, V] and a text may propose."""
    found = []
    limits = LookupLimits(head=6, tail=4)
    for drafted in product(range(V), repeat=K):
        chance = float(np.prod([q[i, d] for i, d in enumerate(drafted)]))
        ids = jnp.broadcast_to(jnp.arange(V, dtype=jnp.int32), (1, K, V))
        block = Drafts(numbers(drafted), ids, jnp.log(jnp.asarray(q[None])), numbers(K))
        match = Match(numbers(length), numbers(0))
        out = fuse(block, numbers(looked), match, numbers(N), numbers(N), limits)
        claimed = np.zeros((N, V))
        for place in range(N):
            np.add.at(claimed[place], np.asarray(out.ids[0, place]), np.exp(out.log_q[0, place]))
        if certain_if_alike:
            for place in range(K):
                if drafted[place] == looked[place]:
                    claimed[place] = np.eye(V)[drafted[place]]
        found.append((chance, np.asarray(out.tokens[0]), claimed, int(out.count[0])))
    return found


def cases():
    rng = np.random.default_rng(5)
    p = rng.dirichlet(np.ones(V), (V, V))
    q = rng.dirichlet(np.ones(V), K)
    expected = np.zeros((V, V, V))
    for chain in product(range(V), repeat=3):
        expected[chain] = np.prod([target(p, chain[:i])[chain[i]] for i in range(3)])
    return p, q, expected


@pytest.mark.parametrize("length", [0, 4, 5, 6, 12])
def test_the_law_of_the_first_tokens_is_the_targets(length):
    p, q, expected = cases()
    for looked in ([0, 1, 2], [2, 2, 0]):
        law = law_of(proposals(q, looked, length), p)
        np.testing.assert_allclose(law, expected, atol=1e-6)


def test_calling_an_agreeing_draft_certain_breaks_the_law():
    p, q, expected = cases()
    law = law_of(proposals(q, [0, 1, 2], 4, certain_if_alike=True), p)
    assert np.abs(law - expected).max() > 1e-2


# -- Drafters ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counting:
    """Proposes 50, 51, ... where drafts are wanted."""

    drafts: int = SHORT
    taps: tuple[int, ...] = (3,)

    def draft(self, params, state, rows, sampling, banned):
        batch = rows.token.shape[0]
        tokens = jnp.broadcast_to(
            50 + jnp.arange(self.drafts, dtype=jnp.int32), (batch, self.drafts)
        )
        return point_masses(tokens, rows.wanted, CANDIDATES), state

    def commit(self, params, state, rows):
        return state


def state_of(drafter, text: list[int], width: int = 64) -> tuple[CacheState, DraftRows]:
    """One request in slot 2 whose tokens were committed in two pieces; its row is the second of the batch."""
    state = CacheState(None, None, None, DraftState(tokens=jnp.full((3, width), 7, jnp.int32)))
    cut = len(text) // 2
    for start, stop in ((0, cut), (cut, len(text) - 1)):
        piece = np.zeros((2, 40), np.int32)
        piece[1, : stop - start] = text[start:stop]
        rows = Committed(
            jnp.asarray(piece),
            None,
            None,
            None,
            numbers(0, start),
            numbers(0, stop - start),
            numbers(0, 2),
            None,
        )
        state = drafter.commit(None, state, rows)
    rows = DraftRows(
        numbers(0, text[-1]), numbers(0, len(text) - 1), numbers(0, 15), numbers(0, 2), None
    )
    return state, rows


TEXT = [
    *range(10, 40),
    *range(10, 20),
]  # ends with the 10 tokens that it starts with; 20, 21, ... followed


def test_the_plain_drafter_copies_what_followed():
    drafter = LookupDrafter(5, 3, 6)
    state, rows = state_of(drafter, TEXT)
    drafts, _ = drafter.draft(None, state, rows, None, None)
    assert drafts.count.tolist() == [0, 5]
    assert drafts.tokens[1].tolist() == [20, 21, 22, 23, 24]
    assert drafts.log_q.shape == (2, 5, 1)
    assert not drafts.log_q[1].any()
    drafts, _ = drafter.draft(None, state, replace(rows, wanted=numbers(0, 2)), None, None)
    assert drafts.count.tolist() == [0, 2]
    state, rows = state_of(drafter, list(range(40)))
    assert drafter.draft(None, state, rows, None, None)[0].count.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("text", "expected", "ready"),
    [
        (TEXT, [*range(20, 35)], True),  # all from the text
        (list(range(40)), [*range(50, 57)], False),  # all from the block
        ([1, 2, 3, 4, 5] * 5, [1, 2, 3, 4, 5, 55, 56], False),  # the text ends after five
    ],
    ids=["copy", "prose", "period"],
)
def test_a_block_drafter_is_helped_where_the_text_repeats(text, expected, ready):
    drafter = LookupBlockDrafter(Counting())
    state, rows = state_of(drafter, text)
    drafts, _ = drafter.draft(None, state, rows, None, None)
    assert drafts.tokens[1, : drafts.count[1]].tolist() == expected
    assert drafts.count[0] == 0
    assert drafter.ready(state, rows).tolist() == [False, ready]
    assert drafter.taps == (3,)


def test_without_places_for_a_tail_only_heads_are_replaced():
    drafter = LookupBlockDrafter(Counting(), SHORT)
    state, rows = state_of(drafter, TEXT)
    drafts, _ = drafter.draft(None, state, rows, None, None)
    assert drafts.tokens[1].tolist() == [*range(20, 27)]
    assert drafter.ready(state, rows).tolist() == [False, True]


def test_bad_numbers_are_refused():
    with pytest.raises(ValueError, match="1 <= shortest <= longest, got 4, 3"):
        LookupDrafter(5, 4, 3)
    with pytest.raises(ValueError, match="6 places don't hold the 7 drafts"):
        LookupBlockDrafter(Counting(), 6)
    with pytest.raises(ValueError, match="tail <= head <= long <= longest"):
        LookupLimits(head=3)
