"""Values of verified and replayed rows on every route. Oracle: the recurrence token by token in float64
(gdn_rows_oracle.py)."""

import gdn_rows_oracle as oracle
import numpy as np
import pytest
from gdn_rollback_cases import Round, commit, random_round, verify
from gdn_rows_cases import CPU, PLAIN
from gdn_rows_oracle import Geometry

TOLERANCE = 2e-5  # of the largest value
ROUTES = {"handler": CPU, "plain": PLAIN}
GEOMETRIES = {
    "tiny": Geometry(4, 8, 128, 128, slots=7),
    "small": Geometry(slots=7),
    "two taps": Geometry(width=2, slots=7),
}


def close(found: np.ndarray, want: np.ndarray) -> bool:
    return bool(np.abs(found - want).max() <= TOLERANCE * np.abs(want).max())


def check(g: Geometry, x: Round, outs: list[np.ndarray], caches) -> None:
    states, windows = caches
    untouched = np.ones(len(states), bool)
    for index, o in enumerate(outs):
        for b, count in enumerate(x.count):
            assert not o[b, count:].any()
            if count == 0:
                continue
            slot, place = x.flat(index)[b], x.first_layer + index
            untouched[slot] = False
            fresh = x.start[b] == 0
            before = (np.zeros_like(a[slot]) if fresh else a[slot] for a in (x.states, x.windows))
            qkv, gates = (a[place, b, :count] for a in x.kept)
            want = oracle.sequence(g, x.of_layer(index), qkv, gates, *before)
            assert close(o[b, :count], want[0])
            assert close(states[slot], want[1])
            assert np.array_equal(windows[slot].astype(np.float64), want[2])
    for after, before in ((states, x.states), (windows, x.windows)):
        assert np.array_equal(after[untouched], before[untouched], equal_nan=True)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_outputs_and_replayed_caches_are_those_of_the_recurrence(name, route):
    g = GEOMETRIES[name]
    x = random_round(g, [5, 3, 0, 1, 2], 5)
    check(g, x, [verify(x, i, ROUTES[route]) for i in range(2)], commit(x, ROUTES[route]))


@pytest.mark.parametrize("route", ROUTES)
def test_narrow_windows_and_all_layers_of_the_model(route):
    g = GEOMETRIES["small"]
    x = random_round(g, [4, 0, 2], 4, window_dtype="float16", first_layer=0)
    check(g, x, [verify(x, i, ROUTES[route]) for i in range(3)], commit(x, ROUTES[route]))


def test_more_rows_than_a_block_take_chunks():
    g = GEOMETRIES["small"]
    x = random_round(g, [40, 0, 17], 40)
    check(g, x, [verify(x, i) for i in range(2)], commit(x))
