"""The lookup finds the longest earlier occurrence of the end of a text, of equally long ones the latest.

Oracle: a search in plain Python, every end position and every length. Covered: random texts of few and many tokens, periodic
texts, the ends of the buffer and of the tiles, what other slots and later positions hold, both forms (per tile, at once),
recording. Not covered: GPUs.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onecat_jax.speculation import lookup
from onecat_jax.speculation.lookup import Text, follow, record, search

LEAST, MOST, SLOTS, WIDTH = 4, 12, 3, 64
_FORMS = ("by_tiles", "at_once")


def brute_force(text: list[int], least: int, most: int) -> tuple[int, int]:
    """Length and end of the match; (0, 0) for none."""
    best, last = (0, 0), len(text) - 1
    for end in range(last):
        length = 0
        while length < min(most, end + 1) and text[end - length] == text[last - length]:
            length += 1
        if length >= least and (length, end) > best:
            best = (length, end)
    return best


def texts_of(rows: list[list[int]], width: int = WIDTH, waste: int = 7) -> Text:
    """Row b of the batch lies in slot b + 1, its last token beside the buffer; `waste` fills what belongs to nobody."""
    tokens = np.full((len(rows) + 1, width), waste, np.int32)
    for slot, row in enumerate(rows, 1):
        tokens[slot, : len(row) - 1] = row[:-1]
    slots = np.arange(1, len(rows) + 1)
    position, token = [len(row) - 1 for row in rows], [row[-1] for row in rows]
    return Text(*(jnp.asarray(a, jnp.int32) for a in (tokens, slots, position, token)))


def scores(form: str, text: Text, least: int = LEAST, most: int = MOST) -> list[tuple[int, int]]:
    live = jnp.ones(text.slots.shape, bool)
    found = _scores(form, text, live, least, most)
    width = text.tokens.shape[1]
    return [(int(s) // width, int(s) % width) if s >= 0 else (0, 0) for s in found]


def _scores(form, text, live, least, most):
    one = lookup._Search(least, most)
    run = jax.jit(lambda t, alive: getattr(one, form)(t, lookup._suffix(t, most), alive))
    return np.asarray(run(text, live))


@pytest.fixture(scope="module", params=_FORMS)
def searched(request):
    """A compiled search for texts in WIDTH places, two at a time."""
    one = lookup._Search(LEAST, MOST)
    form = getattr(one, request.param)
    run = jax.jit(lambda t, alive: form(t, lookup._suffix(t, MOST), alive))

    def of(*rows: list[int]) -> list[tuple[int, int]]:
        found = np.asarray(run(texts_of(list(rows)), jnp.ones(len(rows), bool)))
        return [(int(s) // WIDTH, int(s) % WIDTH) if s >= 0 else (0, 0) for s in found]

    return of


words = st.integers(1, 3).flatmap(
    lambda size: st.lists(st.integers(0, size), min_size=1, max_size=WIDTH)
)


@settings(deadline=None, max_examples=150)
@given(first=words, second=words)
def test_random_texts(searched, first, second):
    expected = [brute_force(row, LEAST, MOST) for row in (first, second)]
    assert searched(first, second) == expected


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(1, WIDTH))
def test_periodic_texts_overlap_themselves(searched, period, length):
    text = (period * WIDTH)[:length]
    found = searched(text, text)[0]
    assert found == brute_force(text, LEAST, MOST)
    if length > MOST + len(period):
        assert found[0] == MOST
        assert length - 1 - found[1] <= len(period)


def test_a_text_that_fills_its_buffer_is_searched_to_its_ends(searched):
    copied = [11, 12, 13, 14, 15]
    start = copied + list(range(20, 20 + WIDTH - 10)) + copied
    middle = list(range(20, 20 + WIDTH - 12)) + [*copied, 90, 91, *copied]
    assert searched(start, middle) == [(5, 4), (5, WIDTH - 8)]


def test_neither_other_slots_nor_later_places_are_part_of_a_text(searched):
    assert searched([7] * 3, [7] * 4) == [(0, 0), (0, 0)]
    assert searched([7] * 5, [7] * 6) == [(4, 3), (5, 4)]


@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize("at", [4080, 4085, 4090, 4096, 4100, 8190])
def test_borders_of_tiles_cut_no_match(form, at):
    rng = np.random.default_rng(at)
    text = rng.integers(100, 10000, 9000).tolist()
    text[at : at + 9] = text[-9:]
    text[20:28] = text[-8:]
    assert scores(form, texts_of([text], width=9000)) == [brute_force(text, LEAST, MOST)]
    assert scores(form, texts_of([text], width=9000))[0] == (9, at + 8)


@pytest.mark.parametrize(("least", "most"), [(1, 1), (2, 3), (5, 5), (3, 40)])
def test_other_lengths(least, most):
    rng = np.random.default_rng(most)
    rows = [rng.integers(0, 2, n).tolist() for n in (1, 2, 33, WIDTH)]
    for form in _FORMS:
        found = scores(form, texts_of(rows), least, most)
        assert found == [brute_force(row, least, most) for row in rows]


def test_what_follows_ends_with_the_text():
    far, near = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4], [1, 2] * 4
    text = texts_of([far, near, [5, 6, 5]])
    live = jnp.asarray([True, True, True])
    match = search(text, live, least=LEAST, most=MOST)
    tokens, valid = follow(text, match, 6)
    assert valid.tolist() == [6, 2, 0]
    assert tokens[0].tolist() == [5, 6, 7, 8, 1, 2]
    assert tokens[1, :2].tolist() == [1, 2]
    tokens, valid = follow(text, match, 8)
    assert valid[0] == 8
    assert tokens[0].tolist() == [5, 6, 7, 8, 1, 2, 3, 4]


def test_rows_that_aren_t_live_have_no_match():
    text = texts_of([[1, 2] * 6, [1, 2] * 6])
    match = search(text, jnp.asarray([False, True]), least=LEAST, most=MOST)
    assert match.length.tolist() == [0, 10]
    assert follow(text, match, 5)[1].tolist() == [0, 2]


def test_fed_rows_are_recorded_where_they_stand():
    tokens = jnp.zeros((SLOTS, 8), jnp.int32)
    fed = jnp.asarray([[1, 2, 3], [4, 5, 6], [7, 8, 9]], jnp.int32)
    start, count, slots = (jnp.asarray(a, jnp.int32) for a in ([2, 7, 0], [2, 3, 0], [2, 1, 0]))
    new = jax.jit(record)(tokens, fed, start, count, slots)
    assert new.tolist() == [[0] * 8, [0] * 7 + [4], [0, 0, 1, 2, 0, 0, 0, 0]]
