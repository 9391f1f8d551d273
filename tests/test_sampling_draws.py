"""The draw: frequencies, ties, independence of row and batch, masks.

Oracle: chi-square of 200,000 draws against the float64 distribution of `sampling_oracle` after penalties, biases, temperature,
min-p, top-k and top-p; the test's own power is shown by planted faults that it must reject. Not covered: the joint law of
several positions (independence of words is Philox's property).
"""

import importlib
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sampling_oracle as oracle
from scipy import stats

from onecat_jax.errors import RequestError
from onecat_jax.sampling import (
    SamplingState,
    SlotCounts,
    healthy_rows,
    request_row,
    sample,
    set_row,
    stack_rows,
    stop_hits,
)
from onecat_jax.sampling_params import SamplingParams

DRAWS = 200_000
LOGITS = np.array([1.3, 0.2, -0.4, 1.3, 0.9, -2.0, 0.0, 0.9, -1.0, 0.5, 0.45, 2.0], np.float32)
SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.6},
    {"temperature": 1.7, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.7},
    {"temperature": 0.8, "min_p": 0.2},
    {"temperature": 1.3, "top_k": 7, "top_p": 0.8, "min_p": 0.05},
    {"presence_penalty": 0.7, "frequency_penalty": 0.3, "repetition_penalty": 1.4},
    {"logit_bias": {0: -0.5, 5: 3.0, 11: -100.0}},
    {
        "presence_penalty": -0.4,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.2,
        "logit_bias": {2: 1.5, 11: -1.0},
        "temperature": 0.9,
        "top_k": 8,
        "top_p": 0.9,
    },
]
jitted = jax.jit(sample, static_argnames=("vocab_size", "stream"))


# Tokens so far: how often generated, and whether in the prompt.
GENERATED = np.array([2, 0, 0, 1, 0, 0, 0, 3, 0, 0, 1, 0])
IN_PROMPT = np.array([0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1])


def tokens_so_far(size: int) -> tuple[np.ndarray, np.ndarray]:
    more = (0, size - GENERATED.size)
    return np.pad(GENERATED, more), np.pad(IN_PROMPT, more)


def law(
    x, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0,
    presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0, logit_bias=None,
) -> np.ndarray:  # fmt: skip
    """Probabilities, float64 [V]."""
    penalties = {
        "presence": presence_penalty,
        "frequency": frequency_penalty,
        "repetition": repetition_penalty,
    }
    x = oracle.penalise(x, *tokens_so_far(x.size), **penalties)
    x = oracle.bias(x, logit_bias or {})
    return oracle.probabilities(
        oracle.truncated(x, t=temperature, minimum=min_p, k=top_k, p=top_p).x
    )


def state_of(count: int, first_seed: int = 0, **settings) -> SamplingState:
    """`count` rows that differ in their seed only, each with room for four biases: more take too much memory here."""
    row = stack_rows([request_row(SamplingParams(**settings), (), seed=0, prompt_length=0)])
    row = replace(row, bias_ids=row.bias_ids[:, :4], bias_values=row.bias_values[:, :4])
    full = jax.tree.map(lambda leaf: jnp.repeat(leaf, count, axis=0), row)
    low = jnp.arange(first_seed, first_seed + count, dtype=jnp.uint32)
    return replace(full, seed=jnp.stack([low, jnp.full(count, 17, jnp.uint32)], axis=-1))


def history_of(count: int, size: int) -> SlotCounts:
    """The tokens so far in slot 1 of 2, for all rows."""
    generated, in_prompt = tokens_so_far(size)
    counts = np.stack([np.full(size, 99), 2 * generated + in_prompt])
    return SlotCounts(jnp.asarray(counts, jnp.int32), jnp.ones(count, jnp.int32))


def counts_of(x: np.ndarray, draw=jitted, **settings) -> np.ndarray:
    logits = jnp.broadcast_to(jnp.asarray(x), (DRAWS, x.size))
    tokens = draw(
        logits, state_of(DRAWS, **settings), jnp.full(DRAWS, 5),
        history=history_of(DRAWS, x.size), vocab_size=x.size,
    )  # fmt: skip
    return np.bincount(np.asarray(tokens), minlength=x.size)


def p_value(counts: np.ndarray, p: np.ndarray) -> float:
    """Chi-square p-value; 0 if a token of probability 0 was drawn."""
    possible = p > 0
    if counts[~possible].any():
        return 0.0
    return stats.chisquare(counts[possible], DRAWS * p[possible]).pvalue


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_frequencies_follow_the_transformed_distribution(settings):
    assert p_value(counts_of(LOGITS, **settings), law(LOGITS, **settings)) > 1e-4


def test_frequencies_follow_the_distribution_beyond_the_head():
    x = np.concatenate([np.linspace(0.6, 0, 90), np.zeros(10)]).astype(np.float32)
    settings = {"temperature": 1.0, "top_p": 0.9}
    assert p_value(counts_of(x, **settings), law(x, **settings)) > 1e-4


@pytest.mark.parametrize(
    ("real", "wrong"),
    [
        ({"temperature": 0.6}, {"temperature": 0.61}),
        ({"top_k": 5}, {"top_k": 6}),
        ({"top_k": 6}, {"top_k": 5}),
        ({"top_p": 0.7}, {"top_p": 0.55}),
        ({"min_p": 0.2}, {"min_p": 0.25}),
        ({"top_k": 3, "top_p": 0.8}, {"top_k": 2}),
        ({"presence_penalty": 0.7}, {"presence_penalty": 0.78}),
        ({"frequency_penalty": 0.3}, {"presence_penalty": 0.3}),
        ({"repetition_penalty": 1.4}, {"repetition_penalty": 1.37}),
        ({"logit_bias": {5: 3.0}}, {"logit_bias": {5: 2.96}}),
        ({"logit_bias": {0: 1.0}, "repetition_penalty": 2.0}, {"logit_bias": {0: 0.5}}),
    ],
    ids=str,
)
def test_the_chi_square_rejects_a_slightly_wrong_law(real, wrong):
    assert p_value(counts_of(LOGITS, **real), law(LOGITS, **wrong)) < 1e-6


def test_the_chi_square_rejects_noise_shared_by_neighbouring_ids(monkeypatch):
    module = importlib.import_module("onecat_jax.sampling.draw")
    genuine = module.gumbel_noise

    def shared(*args, size, **kwargs):
        return genuine(*args, size=size, **kwargs)[:, jnp.arange(size) // 2 * 2]

    monkeypatch.setattr(module, "gumbel_noise", shared)
    assert p_value(counts_of(LOGITS, sample, temperature=1.0), law(LOGITS)) < 1e-6


def test_a_greedy_tie_goes_to_the_lowest_id():
    x = jnp.array([[0.0, 3.0, 3.0], [3.0, 3.0, 3.0], [-0.0, 0.0, -1.0], [-1.0, -0.0, 0.0]])
    tokens = jitted(x, state_of(4, temperature=0.0), jnp.zeros(4, jnp.int32), vocab_size=3)
    assert tokens.tolist() == [1, 0, 0, 1]


def mixed_params(rng: np.random.Generator, size: int) -> SamplingParams:
    biased = rng.choice(size, int(rng.choice([0, 0, 3])), replace=False)
    return SamplingParams(
        temperature=float(rng.choice([0.0, 0.7, 1.0])),
        top_k=int(rng.choice([0, 20, 64, 100])),
        top_p=float(rng.choice([1.0, 0.95, 0.5])),
        min_p=float(rng.choice([0.0, 0.05])),
        presence_penalty=float(rng.choice([0.0, 0.0, 1.3])),
        frequency_penalty=float(rng.choice([0.0, 0.0, 0.7])),
        repetition_penalty=float(rng.choice([1.0, 1.0, 1.7])),
        logit_bias={int(i): float(rng.normal() * 9) for i in biased},
        min_tokens=int(rng.choice([0, 9])),
        stop_token_ids=[int(i) for i in rng.integers(0, size, 3)],
    )


def test_a_row_draws_the_same_token_alone_in_any_row_slot_and_batch():
    rng = np.random.default_rng(0)
    count, size, slots = 48, 700, 60
    rows = [
        request_row(mixed_params(rng, size), (), seed=i * 977, prompt_length=4)
        for i in range(count)
    ]
    logits = rng.normal(size=(count, size)).astype(np.float32) * 2
    positions = rng.integers(4, 20, count).astype(np.int32)
    seen = rng.integers(0, 5, (count, size)).astype(np.int32)

    def draw(chosen: np.ndarray) -> np.ndarray:
        own = rng.permutation(slots)[: len(chosen)].astype(np.int32)
        counts = rng.integers(0, 99, (slots, size)).astype(np.int32)  # of others
        counts[own] = seen[chosen]
        return np.asarray(
            jitted(
                logits[chosen], stack_rows([rows[i] for i in chosen]), positions[chosen],
                history=SlotCounts(counts, own), vocab_size=690,
            )
        )  # fmt: skip

    together = draw(np.arange(count))
    np.testing.assert_array_equal(draw(np.arange(count)), together)
    for batch in (1, 3, 8):
        order = rng.permutation(count)
        for chosen in order.reshape(-1, batch) if batch < 3 else order.reshape(-1, batch)[:6]:
            np.testing.assert_array_equal(draw(chosen), together[chosen])


def test_a_draw_depends_on_seed_and_position_and_nothing_else():
    x = jnp.zeros((64, 1000))
    state = state_of(64, temperature=1.0)
    same = jax.tree.map(lambda leaf: jnp.repeat(leaf[:1], 64, axis=0), state)
    still = jnp.full(64, 3)
    assert len(set(jitted(x, same, still, vocab_size=1000).tolist())) == 1
    assert len(set(jitted(x, state, still, vocab_size=1000).tolist())) > 50
    assert len(set(jitted(x, same, jnp.arange(64), vocab_size=1000).tolist())) > 50


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.0},
        {},
        {"top_k": 3},
        {"top_p": 0.9},
        {"logit_bias": {97: 100, 99: 100, 100: 100}},
    ],
)
def test_padding_and_banned_ids_are_never_picked(settings):
    x = jnp.broadcast_to(jnp.arange(128.0) / 8, (512, 128))
    banned = jnp.zeros(128, bool).at[jnp.array([99, 97])].set(True)
    state = state_of(512, **settings)
    tokens = jitted(x, state, jnp.zeros(512, jnp.int32), vocab_size=100, banned=banned)
    assert int(tokens.max()) == 98
    assert 97 not in tokens.tolist()


def test_stop_ids_are_not_picked_before_min_tokens():
    params = SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=[3])
    state = stack_rows([request_row(params, (5,), seed=0, prompt_length=10)] * 3)
    x = jnp.broadcast_to(jnp.array([0.0, 1, 0, 9, 0, 10, 2]), (3, 7))
    tokens = jitted(x, state, jnp.array([10, 11, 12]), vocab_size=7)
    assert tokens.tolist() == [6, 6, 5]
    assert stop_hits(jnp.array([5, 3, 6]), state).tolist() == [True, True, False]


def test_ignore_eos_leaves_only_the_requests_own_stop_ids():
    params = SamplingParams(ignore_eos=True, stop_token_ids=[3])
    state = stack_rows([request_row(params, (5,), seed=0, prompt_length=10)])
    assert stop_hits(jnp.array([5]), state).tolist() == [False]
    assert stop_hits(jnp.array([3]), state).tolist() == [True]


def test_more_stop_ids_than_the_bound_are_refused():
    params = SamplingParams(stop_token_ids=list(range(15)))
    with pytest.raises(RequestError, match="17 stop ids; at most 16"):
        request_row(params, (100, 101), seed=0, prompt_length=0)


def test_a_row_of_bad_numbers_is_told_apart_and_leaves_its_neighbours_alone():
    x = np.random.default_rng(0).normal(size=(5, 100)).astype(np.float32)
    state, positions = state_of(5, temperature=1.0, top_k=9), jnp.zeros(5, jnp.int32)
    clean = jitted(x, state, positions, vocab_size=90)
    x[1, 4], x[2, 5], x[3, :90], x[4, 95] = np.nan, np.inf, -np.inf, np.nan
    assert healthy_rows(jnp.asarray(x), vocab_size=90).tolist() == [True, False, False, False, True]
    got = jitted(x, state, positions, vocab_size=90)
    assert got[0] == clean[0]
    assert got[4] == clean[4]
    assert int(got[1]) != 4


def test_a_row_can_be_replaced_inside_jit():
    state = stack_rows([None, None, None])
    row = request_row(
        SamplingParams(temperature=0.5, seed=1), (7,), seed=2**64 - 1, prompt_length=4
    )
    new = jax.jit(set_row)(state, jnp.int32(1), row)
    assert new.temperature.tolist() == [0, 0.5, 0]
    assert new.seed[1].tolist() == [2**32 - 1, 2**32 - 1]
    assert new.stop_ids[1, 0] == 7
    assert new.stop_ids[0, 0] == -1


def test_nothing_is_sorted_and_greedy_batches_draw_no_noise():
    text = (
        jax.jit(sample, static_argnames="vocab_size")
        .lower(jnp.zeros((2, 500)), state_of(2), jnp.zeros(2, jnp.int32), vocab_size=500)
        .as_text()
    )
    assert "stablehlo.sort" not in text
    before_branches = text[text.index("func.func public @main") :].split('"stablehlo.case"')[0]
    assert "stablehlo.log" not in before_branches
    assert "top_k" not in before_branches
