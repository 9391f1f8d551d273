"""Every transform, alone and together.

Oracle: `sampling_oracle`, on the 1,000 cases of `sampling_cases`: ties, NaN, infinities, empty rows, k of 1 and beyond the
vocabulary, p of 1 and near 0, temperatures of 1e-30 to 50. Rows with a decision within rounding of its threshold are left out
and counted. Not covered: the draw (test_sampling_draws).
"""

from collections.abc import Callable, Iterator
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sampling_oracle as oracle
from sampling_cases import COUNTS, EOS, Batch, Case, batch

from onecat_jax.sampling import SlotCounts, adjust, cut, penalties, sample, sums, transforms
from onecat_jax.sampling.randomness import STREAM_TARGET, gumbel_noise
from onecat_jax.sampling.search import apply_cut
from onecat_jax.sampling.vocabulary import ALL_IDS

apply_temperature = jax.jit(transforms.apply_temperature)
apply_top_k = jax.jit(transforms.apply_top_k)
apply_top_p = jax.jit(transforms.apply_top_p)
target_logits = jax.jit(transforms.target_logits)
find_cut = jax.jit(cut.find_cut)
head_of = jax.jit(cut.head_of)
cut_of = jax.jit(cut.cut_of)
search_cut = jax.jit(cut.search_cut)
tree_sum = jax.jit(sums.tree_sum)


@partial(jax.jit, static_argnames="vocab_size")
def stages(logits, state, positions, banned, counts, slots, *, vocab_size) -> dict[str, jax.Array]:
    """Each transform on the raw logits alone, and all in their order."""
    x, history = transforms.clean(logits), SlotCounts(counts, slots)
    allowed = {"vocab_size": vocab_size, "banned": banned}
    adjusted = adjust.adjusted_logits(logits, state, positions, history=history, **allowed)
    rest = (state.temperature, state.min_p, state.top_k, state.top_p)
    return {
        "penalties": penalties.apply_penalties(x, state, history),
        "bias": penalties.apply_bias(x, state, ALL_IDS),
        "adjusted": adjusted,
        "temperature": transforms.apply_temperature(logits, state.temperature),
        "min_p": transforms.apply_min_p(logits, state.min_p),
        "top_k": transforms.apply_top_k(logits, state.top_k),
        "top_p": transforms.apply_top_p(logits, state.top_p),
        "search": apply_cut(x, cut.search_cut(x, state.top_k, state.top_p)),
        "whole": transforms.target_logits(adjusted, *rest),
        "noise": gumbel_noise(state.seed, positions, STREAM_TARGET, size=logits.shape[1]),
        "token": sample(logits, state, positions, history=history, **allowed),
    }


@cache
def results(size: int) -> dict[str, np.ndarray]:
    b = batch(size)
    found = stages(
        b.logits, b.state, b.positions, b.banned, b.history.counts, b.history.slots,
        vocab_size=b.vocab_size,
    )  # fmt: skip
    return jax.tree.map(np.asarray, found)


def every(stage: str) -> Iterator[tuple[Case, Batch, np.ndarray]]:
    """All cases with what one stage made of them."""
    for size in COUNTS:
        for case, got in zip(batch(size).cases, results(size)[stage], strict=True):
            yield case, batch(size), got


def assert_same(got: np.ndarray, want: np.ndarray, tolerance: float) -> None:
    """Removed tokens are the same ones, the others equal within rounding."""
    kept = np.isfinite(want)
    np.testing.assert_array_equal(np.isfinite(got), kept)
    np.testing.assert_allclose(got[kept], want[kept], rtol=tolerance, atol=tolerance)


def check(stage: str, expected: Callable[[Case], oracle.Row], *, at_least: int) -> None:
    """Compares all cases but those too close to call, of which there may be few."""
    compared = 0
    for case, _, got in every(stage):
        want = expected(case)
        if not want.close:
            assert_same(got, want.x, 2e-6)
            compared += 1
    assert compared >= at_least


def penalised(case: Case, x: np.ndarray) -> np.ndarray:
    params = case.params
    return oracle.penalise(
        x,
        case.generated,
        case.in_prompt,
        presence=params.presence_penalty,
        frequency=params.frequency_penalty,
        repetition=params.repetition_penalty,
    )


def adjusted(case: Case, cases: Batch) -> np.ndarray:
    stops = {EOS, *case.params.stop_ids} if case.early else set()
    x = oracle.bias(penalised(case, case.x), dict(case.params.biases))
    return oracle.remove(x, cases.removed | stops)


def whole(case: Case, cases: Batch) -> oracle.Row:
    p = case.params
    x = adjusted(case, cases)
    return oracle.truncated(x, t=p.temperature, minimum=p.min_p, k=p.top_k, p=p.top_p)


def test_there_are_a_thousand_cases():
    assert sum(len(batch(size).cases) for size in COUNTS) == 1000


def test_penalties_agree_with_float64_on_every_case():
    for case, _, got in every("penalties"):
        assert_same(oracle.cleaned(got), penalised(case, case.x), 1e-5)


def test_biases_agree_with_float64_on_every_case():
    for case, _, got in every("bias"):
        assert_same(oracle.cleaned(got), oracle.bias(case.x, dict(case.params.biases)), 1e-5)


def test_penalties_biases_and_masks_together_agree_with_float64_on_every_case():
    for case, cases, got in every("adjusted"):
        assert_same(got, adjusted(case, cases), 1e-5)


def test_temperature_agrees_with_float64_on_every_case():
    for case, _, got in every("temperature"):
        assert_same(got, oracle.temperature(case.x, case.params.temperature), 1e-6)


def test_min_p_agrees_with_float64():
    check("min_p", lambda case: oracle.min_p(case.x, case.params.min_p), at_least=1000)


def test_top_k_agrees_with_the_total_order():
    check("top_k", lambda case: oracle.top_k(case.x, case.params.top_k), at_least=1000)


def test_top_p_agrees_with_float64():
    check("top_p", lambda case: oracle.top_p(case.x, case.params.top_p), at_least=970)


def test_the_search_alone_agrees_with_float64():
    def expected(case: Case) -> oracle.Row:
        first = oracle.top_k(case.x, case.params.top_k)
        second = oracle.top_p(first.x, case.params.top_p)
        return oracle.Row(second.x, first.close or second.close)

    check("search", expected, at_least=970)


def test_the_whole_chain_agrees_with_float64():
    compared = 0
    for case, cases, got in every("whole"):
        want = whole(case, cases)
        if not want.close:
            assert_same(got, want.x, 1e-5 / (case.params.temperature or 1))
            compared += 1
    assert compared >= 975


def test_the_token_is_the_largest_of_the_oracles_logits_plus_noise():
    drawn = greedy = 0
    tokens = (token for _, _, token in every("token"))
    for (case, cases, noise), token in zip(every("noise"), tokens, strict=True):
        want = whole(case, cases)
        if want.close or not np.isfinite(want.x).any():
            continue
        if case.params.temperature == 0:
            assert token == oracle.ranked(adjusted(case, cases))[0]
            greedy += 1
            continue
        scores = want.x + noise
        best, *others = oracle.ranked(scores)
        if others and scores[best] - scores[others[0]] < 1e-4:
            continue
        assert token == best
        drawn += 1
    assert (drawn, greedy) >= (830, 120)


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
