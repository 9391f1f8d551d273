"""Penalties, biases and the ids that may not be picked, in small examples and as laws of a batch.

Oracle: results written down by hand. Agreement with float64 on random cases is in test_sampling_transforms, frequencies in
test_sampling_draws, and what a whole request does with them in the engine's tests.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onecat_jax.sampling import SlotCounts, request_row, sample, stack_rows
from onecat_jax.sampling.adjust import adjusted_logits
from onecat_jax.sampling_params import SamplingParams
from onecat_jax.state.history import GENERATED, PROMPT

# Token 0 unseen, 1 in the prompt, 2 generated twice, 3 both in the prompt and generated once.
COUNTS = [0, PROMPT, 2 * GENERATED, PROMPT + GENERATED]
HISTORY = SlotCounts(jnp.array([[99, 99, 99, 99], COUNTS], jnp.int32), jnp.array([1], jnp.int32))


def rows(*params: SamplingParams, prompt_length: int = 0):
    return stack_rows([request_row(p, (), seed=0, prompt_length=prompt_length) for p in params])


def adjusted(x, params: SamplingParams, **arguments) -> list[float]:
    arguments = {"vocab_size": len(x), "history": HISTORY, **arguments}
    positions = jnp.zeros(1, jnp.int32)
    return adjusted_logits(jnp.array([x]), rows(params), positions, **arguments)[0].tolist()


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        ({}, [4, 4, 4, 4]),
        ({"presence_penalty": 1}, [4, 4, 3, 3]),
        ({"presence_penalty": -1}, [4, 4, 5, 5]),
        ({"frequency_penalty": 1}, [4, 4, 2, 3]),
        ({"repetition_penalty": 2}, [4, 2, 2, 2]),
        ({"repetition_penalty": 0.5}, [4, 8, 8, 8]),
        ({"repetition_penalty": 2, "frequency_penalty": 1, "presence_penalty": 0.5}, [4, 2, -0.5, 0.5]),
        ({"logit_bias": {0: 3, 3: -100}}, [7, 4, 4, -96]),
        ({"logit_bias": {1: 2}, "repetition_penalty": 2}, [4, 4, 2, 2]),
    ],
    ids=str,
)  # fmt: skip
def test_penalties_see_the_right_tokens_in_the_right_order(settings, want):
    assert adjusted([4.0, 4, 4, 4], SamplingParams(**settings)) == want


def test_a_repetition_penalty_lowers_negative_logits_too():
    assert adjusted([-4.0, -4, 0, -4], SamplingParams(repetition_penalty=2)) == [-4, -8, 0, -8]


def test_penalties_do_not_bring_bad_numbers_back():
    x = [np.nan, np.inf, -np.inf, -3e38]
    params = SamplingParams(repetition_penalty=2, frequency_penalty=-2, logit_bias={0: 100})
    largest = float(np.finfo(np.float32).max)
    assert adjusted(x, params) == [-np.inf, largest / 2, -np.inf, -np.inf]


def test_a_bias_does_not_bring_back_what_may_not_be_picked():
    params = SamplingParams(logit_bias={0: 100, 3: 100}, frequency_penalty=-2)
    banned = jnp.array([True, False, False, False])
    assert adjusted([1.0, 1, 1, 1], params, banned=banned, vocab_size=3) == [
        -np.inf,
        1,
        5,
        -np.inf,
    ]


def test_a_greedy_request_follows_penalties_and_biases():
    state = rows(
        SamplingParams(temperature=0),
        SamplingParams(temperature=0, presence_penalty=1.5),
        SamplingParams(temperature=0, logit_bias={0: 3}),
    )
    history = SlotCounts(HISTORY.counts, jnp.ones(3, jnp.int32))
    x = jnp.broadcast_to(jnp.array([1.0, 2, 3, 1]), (3, 4))
    tokens = sample(x, state, jnp.zeros(3, jnp.int32), vocab_size=4, history=history)
    assert tokens.tolist() == [2, 1, 0]


def test_a_row_without_penalties_keeps_its_bits_beside_one_that_has_all_of_them():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 500)), jnp.float32)
    everything = SamplingParams(
        presence_penalty=1,
        frequency_penalty=0.3,
        repetition_penalty=1.7,
        logit_bias={7: 1.5},
        min_tokens=3,
        stop_token_ids=[9],
    )
    counts = jnp.asarray(np.random.default_rng(1).integers(0, 9, (3, 500)), jnp.int32)
    history = SlotCounts(counts, jnp.array([1, 2], jnp.int32))
    arguments = {"positions": jnp.zeros(2, jnp.int32), "vocab_size": 500, "history": history}
    got = adjusted_logits(x, rows(SamplingParams(), everything), **arguments)
    np.testing.assert_array_equal(got[0], x[0])
    assert (got[1] != x[1]).sum() > 300


def test_other_values_are_not_traced_again():
    traces = []

    @jax.jit
    def pick(x, state, positions):
        traces.append(x.shape)
        return sample(x, state, positions, history=HISTORY, vocab_size=4)

    for settings in (
        {},
        {"presence_penalty": 1},
        {"frequency_penalty": 1, "repetition_penalty": 3},
        {"logit_bias": {1: 4, 2: -100}, "min_tokens": 4, "stop_token_ids": [3]},
        {"temperature": 0, "top_k": 3, "top_p": 0.3, "min_p": 0.1, "seed": 4},
    ):
        pick(jnp.zeros((1, 4)), rows(SamplingParams(**settings)), jnp.zeros(1, jnp.int32))
    assert traces == [(1, 4)]


def test_a_batch_without_penalties_and_biases_reads_no_counts():
    def adjust(x, state, positions):
        return adjusted_logits(x, state, positions, vocab_size=4, history=HISTORY)

    arguments = (jnp.zeros((1, 4)), rows(SamplingParams()), jnp.zeros(1, jnp.int32))
    text = jax.jit(adjust).lower(*arguments).as_text()
    main = text[text.index("func.func public @main") :]
    before, branches = main.split('"stablehlo.case"', maxsplit=1)
    assert "stablehlo.gather" not in before
    assert "stablehlo.scatter" not in before
    assert "stablehlo.gather" in branches
