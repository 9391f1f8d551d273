"""Values of the row form of GDN. Oracle: the recurrence token by token in float64 (gdn_rows_oracle.py)."""

from dataclasses import replace

import gdn_rows_oracle as oracle
import numpy as np
import pytest
from gdn_rows_cases import CPU, PLAIN, Batch, random_batch, run
from gdn_rows_oracle import Geometry

TOLERANCE = 2e-5  # of the largest value
GEOMETRIES = {
    "tiny": Geometry(4, 8, 128, 128),
    "small": Geometry(),
    "27b tp4": Geometry(4, 12, 128, 128, layers=2),
    "one head": Geometry(1, 1, 16, 16),
    "wide values": Geometry(1, 2, 64, 256),
    "wide keys": Geometry(2, 2, 256, 48),
    "three taps": Geometry(width=3),
    "two taps": Geometry(width=2),
}
ROUTES = {"handler": CPU, "plain": PLAIN}


def check(g: Geometry, x: Batch, found, tolerance: float = TOLERANCE) -> None:
    out, states, windows = found
    touched = set()
    for b, count in enumerate(x.count):
        slot = x.slots[b]
        assert not out[b, count:].any()
        if count == 0:
            continue
        touched.add(slot)
        fresh = x.start[b] == 0
        state = np.zeros_like(x.states[slot]) if fresh else x.states[slot]
        window = np.zeros_like(x.windows[slot]) if fresh else x.windows[slot]
        want = oracle.sequence(g, x.weights, x.qkv[b, :count], x.gates[b, :count], state, window)
        for a, w in zip((out[b, :count], states[slot]), want[:2], strict=True):
            assert np.abs(a - w).max() <= tolerance * max(np.abs(w).max(), 1e-30)
        assert np.array_equal(windows[slot].astype(np.float64), want[2])
    others = [s for s in range(len(states)) if s not in touched]
    assert np.array_equal(states[others], x.states[others], equal_nan=True)
    assert np.array_equal(windows[others], x.windows[others], equal_nan=True)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_outputs_states_and_windows_are_those_of_the_recurrence(name, route):
    g = GEOMETRIES[name]
    x = random_batch(g, [1, 1, 0], 1)
    check(g, x, run(x, ROUTES[route]))
    x = random_batch(g, [5, 3, 0, 1], 5)
    check(g, x, run(x, ROUTES[route]))


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("width", [2, 8, 16])
def test_blocks_of_up_to_sixteen_rows(width, route):
    g = GEOMETRIES["small"]
    x = random_batch(g, [width, width - 1, 1, 0], width)
    check(g, x, run(x, ROUTES[route]))


@pytest.mark.parametrize("count", [17, 64, 65])
def test_longer_inputs_take_chunks_and_give_the_same_values(count):
    g = GEOMETRIES["small"]
    x = random_batch(g, [count, count - 9], count)
    check(g, x, run(x, CPU))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("route", ROUTES)
def test_narrow_windows_hold_the_rows_exactly(dtype, route):
    """The rows have the window's precision, so storing them loses nothing."""
    g = GEOMETRIES["small"]
    x = random_batch(g, [3, 2, 0], 3, window_dtype=dtype)
    check(g, x, run(x, ROUTES[route]))


@pytest.mark.parametrize("a", [-200.0, 0.0, 200.0])
@pytest.mark.parametrize("b", [-200.0, 200.0])
def test_gates_at_their_ends(a, b):
    """No decay at all, decay to nothing, nothing written, everything written."""
    g = GEOMETRIES["small"]
    x = random_batch(g, [6, 4], 6)
    x.gates[..., : g.value_heads], x.gates[..., g.value_heads :] = b, a
    found = run(x)
    assert np.isfinite(found[0]).all()
    check(g, x, found)


def thousand_tokens(kind: str, g: Geometry) -> tuple[np.ndarray, np.ndarray]:
    """qkv [1000, C] and gates [1000, 2 * Hv]."""
    rng = np.random.default_rng(5)
    qkv = rng.standard_normal((1000, g.channels)).astype(np.float32)
    gates = rng.standard_normal((1000, 2 * g.value_heads)).astype(np.float32)
    if kind == "equal keys":
        keys = slice(g.key_heads * g.key_dim, 2 * g.key_heads * g.key_dim)
        qkv[:, keys] = qkv[0, keys] + 1e-3 * qkv[:, keys]
        gates[:, : g.value_heads], gates[:, g.value_heads :] = 7.0, -10.0
    return qkv, gates


@pytest.mark.parametrize("kind", ["random", "equal keys"])
def test_a_thousand_tokens_stay_close(kind):
    g = Geometry(1, 2, 64, 32)
    x = random_batch(g, [1], 1)
    qkv, gates = thousand_tokens(kind, g)
    want = oracle.sequence(g, x.weights, qkv, gates, x.states[x.slots[0]], x.windows[x.slots[0]])
    states, windows, outs = x.states, x.windows, []
    for t in range(0, 1000, 8):
        part = replace(
            x, qkv=qkv[None, t : t + 8], gates=gates[None, t : t + 8], states=states, windows=windows,
            start=x.start + t, count=np.array([8], np.int32),
        )  # fmt: skip
        out, states, windows = run(part)
        outs.append(out[0])
    assert np.abs(np.concatenate(outs) - want[0]).max() <= TOLERANCE * np.abs(want[0]).max()
