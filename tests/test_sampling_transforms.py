"""Temperature, min-p, top-k, top-p.

Oracle: plain NumPy in float64 that sorts by (value descending, id ascending), one row at a time. Inputs are drawn so that ties
are frequent. Cases where the oracle's own decision lies within rounding of a threshold are compared apart from that token.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onecat_jax.sampling import cut, sums, transforms

SIZES = (3, 17, 64, 65, 200, 1000)
ROWS = 50  # of each size, 300 cases in all
SLACK = 1e-5

apply_temperature = jax.jit(transforms.apply_temperature)
apply_min_p = jax.jit(transforms.apply_min_p)
apply_top_k = jax.jit(transforms.apply_top_k)
apply_top_p = jax.jit(transforms.apply_top_p)
target_logits = jax.jit(transforms.target_logits)
find_cut = jax.jit(cut.find_cut)
head_of = jax.jit(cut.head_of)
cut_of = jax.jit(cut.cut_of)
search_cut = jax.jit(cut.search_cut)
tree_sum = jax.jit(sums.tree_sum)


def ranked(x: np.ndarray) -> np.ndarray:
    return np.lexsort((np.arange(x.size), -x))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def keep_min_p(x: np.ndarray, p: float) -> tuple[np.ndarray, np.ndarray]:
    ratio = np.exp(x - x.max())
    return ratio >= p, np.abs(ratio - p) > SLACK * max(p, 1e-30)


def keep_top_k(x: np.ndarray, k: int) -> np.ndarray:
    kept = np.zeros(x.size, bool)
    kept[ranked(x)[: k if k > 0 else x.size]] = True
    return kept


def keep_top_p(x: np.ndarray, p: float) -> tuple[np.ndarray, np.ndarray]:
    order = ranked(x)
    before = np.concatenate([[0.0], np.cumsum(softmax(x)[order])[:-1]])
    kept, sure = np.ones(x.size, bool), np.ones(x.size, bool)
    if p < 1:
        kept[order] = (before < p) | (np.arange(x.size) == 0)
        sure[order] = np.abs(before - p) > SLACK
    return kept, sure


def oracle(x, temperature, min_p, top_k, top_p) -> tuple[np.ndarray, np.ndarray]:
    """Scaled logits with removed tokens at -inf, and which tokens the oracle is sure of."""
    x = (x.astype(np.float64) - x.max()) / (temperature or 1.0)
    kept, sure = keep_min_p(x, min_p)
    x = np.where(kept, x, -np.inf)
    x = np.where(keep_top_k(x, top_k), x, -np.inf)
    kept, sure_p = keep_top_p(x, top_p)
    return np.where(kept, x, -np.inf), sure & sure_p


def random_case(size: int, index: int) -> dict:
    rng = np.random.default_rng([size, index])
    x = rng.normal(scale=rng.choice([0.3, 2.0, 8.0]), size=size)
    if index % 2:
        x = np.round(x)  # many ties
    return {
        "x": x.astype(np.float32),
        "temperature": float(rng.choice([0.2, 0.7, 1.0, 1.9])),
        "min_p": float(rng.choice([0.0, 0.0, 0.02, 0.3, 1.0])),
        "top_k": int(rng.choice([0, 1, 3, 20, 64, 65, 150, size, size + 5])),
        "top_p": float(rng.choice([1.0, 1e-6, 0.1, 0.5, 0.9, 0.999])),
    }


def batch(cases: list[dict]) -> dict[str, jax.Array]:
    types = {"top_k": jnp.int32}
    return {
        name: jnp.asarray(np.stack([case[name] for case in cases]), types.get(name, jnp.float32))
        for name in cases[0]
    }


def assert_row_matches(got: np.ndarray, want: np.ndarray, sure: np.ndarray) -> None:
    kept = np.isfinite(want) & sure
    np.testing.assert_array_equal(np.isfinite(got)[sure], np.isfinite(want)[sure])
    np.testing.assert_allclose(got[kept], want[kept], rtol=1e-5, atol=1e-5)


@pytest.fixture(params=SIZES)
def cases(request) -> list[dict]:
    return [random_case(request.param, index) for index in range(ROWS)]


def test_the_whole_transform_agrees_with_float64_on_random_cases(cases):
    arrays = batch(cases)
    logits = arrays.pop("x")
    for case, got in zip(cases, np.asarray(target_logits(logits, **arrays)), strict=True):
        assert_row_matches(got, *oracle(**case))


def test_top_p_alone_agrees_with_float64_on_random_cases(cases):
    arrays = batch(cases)
    rows = np.isfinite(apply_top_p(arrays["x"], arrays["top_p"]))
    for case, got in zip(cases, rows, strict=True):
        kept, sure = keep_top_p(case["x"].astype(np.float64), case["top_p"])
        np.testing.assert_array_equal(got[sure], kept[sure])


def test_min_p_alone_agrees_with_float64_on_random_cases(cases):
    arrays = batch(cases)
    rows = np.isfinite(apply_min_p(arrays["x"], arrays["min_p"]))
    for case, got in zip(cases, rows, strict=True):
        kept, sure = keep_min_p(case["x"].astype(np.float64), case["min_p"])
        np.testing.assert_array_equal(got[sure], kept[sure])


def test_top_k_alone_agrees_with_the_total_order_on_random_cases(cases):
    arrays = batch(cases)
    rows = np.isfinite(apply_top_k(arrays["x"], arrays["top_k"]))
    for case, got in zip(cases, rows, strict=True):
        np.testing.assert_array_equal(got, keep_top_k(case["x"], case["top_k"]))


def test_temperature_alone_agrees_with_float64_on_random_cases(cases):
    arrays = batch(cases)
    rows = np.asarray(apply_temperature(arrays["x"], arrays["temperature"]))
    for case, got in zip(cases, rows, strict=True):
        x = case["x"].astype(np.float64)
        np.testing.assert_allclose(got, (x - x.max()) / case["temperature"], rtol=1e-5, atol=1e-6)


def test_top_k_keeps_exactly_k_and_breaks_ties_by_lower_id():
    row = jnp.array([[1.0, 2.0, 1.0, 1.0, 0.0, 1.0]])
    for k, kept in [(1, [1]), (2, [0, 1]), (3, [0, 1, 2]), (4, [0, 1, 2, 3])]:
        assert np.flatnonzero(np.isfinite(apply_top_k(row, jnp.array([k]))[0])).tolist() == kept


def test_top_p_keeps_the_token_that_crosses_the_mass_and_always_the_first():
    row = jnp.log(jnp.array([[0.25, 0.5, 0.125, 0.125]]))
    for p, kept in [
        (1e-30, [1]),
        (0.5, [1]),
        (0.51, [0, 1]),
        (0.76, [0, 1, 2]),
        (1.0, [0, 1, 2, 3]),
    ]:
        got = apply_top_p(row, jnp.array([p], jnp.float32))
        assert np.flatnonzero(np.isfinite(got[0])).tolist() == kept


def test_positive_and_negative_zero_tie():
    row = jnp.array([[0.0, -0.0, 0.0, -1.0]])
    one = jnp.ones(1, jnp.float32)
    got = target_logits(row, one, jnp.zeros(1), jnp.array([2]), one)
    assert np.flatnonzero(np.isfinite(got[0])).tolist() == [0, 1]


def test_neutral_values_change_nothing_but_a_shift():
    x = np.random.default_rng(1).normal(size=(4, 300)).astype(np.float32)
    ones, zeros = jnp.ones(4, jnp.float32), jnp.zeros(4, jnp.float32)
    got = target_logits(jnp.asarray(x), ones, zeros, jnp.zeros(4, jnp.int32), ones)
    np.testing.assert_array_equal(got, x - x.max(axis=1, keepdims=True))


def test_bad_values_are_never_kept_and_do_not_spread():
    rows = np.zeros((4, 70), np.float32)
    rows[1, 3], rows[2, 5], rows[3] = np.nan, np.inf, -np.inf
    args = (jnp.full(4, 0.5), jnp.full(4, 0.1), jnp.full(4, 8), jnp.full(4, 0.9))
    got = np.asarray(target_logits(jnp.asarray(rows), *args))
    assert np.isfinite(got[0]).sum() == 8
    assert not np.isnan(got).any()
    assert got[1, 3] == -np.inf
    assert np.flatnonzero(np.isfinite(got[2])).tolist() == [5]
    assert not np.isfinite(got[3]).any()


def test_a_tiny_temperature_does_not_overflow():
    row = jnp.array([[1e4, -1e4, 9.99e3, 1e4]])
    got = apply_temperature(row, jnp.array([1e-6], jnp.float32))
    assert got[0, 0] == 0
    assert got[0, 3] == 0
    assert not np.isnan(got).any()


def test_head_and_search_find_the_same_cut():
    rng = np.random.default_rng(5)
    x = jnp.asarray(np.round(rng.normal(size=(64, 900)) * 4) / 2, jnp.float32)
    top_k = jnp.asarray(rng.choice([1, 5, 20, 64], 64), jnp.int32)
    top_p = jnp.asarray(rng.choice([0.3, 0.8, 0.95, 1.0], 64), jnp.float32)
    head = head_of(x, top_k, top_p)
    assert bool(head.resolved.all())
    for short, searched in zip(cut_of(head), search_cut(x, top_k, top_p), strict=True):
        np.testing.assert_array_equal(short, searched)


def test_the_search_agrees_with_float64_on_random_cases(cases):
    arrays = batch(cases)
    found = search_cut(arrays["x"] + 0.0, arrays["top_k"], arrays["top_p"])
    for case, value, token in zip(cases, *map(np.asarray, found), strict=True):
        x = case["x"].astype(np.float64) + 0.0
        kept, sure = keep_top_p(np.where(keep_top_k(x, case["top_k"]), x, -np.inf), case["top_p"])
        kept &= keep_top_k(x, case["top_k"])
        ids = np.arange(x.size)
        got = (x > value) | ((x == value) & (ids <= token))
        np.testing.assert_array_equal(got[sure], kept[sure])


def test_a_neighbour_that_needs_a_search_does_not_change_a_row():
    rng = np.random.default_rng(6)
    x = jnp.asarray(rng.normal(size=(2, 900)), jnp.float32)
    top_k, top_p = jnp.array([20, 0]), jnp.array([0.9, 0.999], jnp.float32)
    both = find_cut(x, top_k, top_p)
    alone = find_cut(x[:1], top_k[:1], top_p[:1])
    assert not bool(head_of(x, top_k, top_p).resolved[1])
    assert (both.value[0], both.token[0]) == (alone.value[0], alone.token[0])


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 1000, 5000])
def test_sums_agree_with_float64_and_have_the_same_bits_alone(length):
    x = np.random.default_rng(length).random((3, length)).astype(np.float32)
    got = np.asarray(tree_sum(x))
    np.testing.assert_allclose(got, x.sum(axis=1, dtype=np.float64), rtol=1e-6)
    np.testing.assert_array_equal(tree_sum(x[1:2]), got[1:2])
