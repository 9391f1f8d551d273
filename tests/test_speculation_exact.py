"""Drafts change nothing but the time: greedy text and its log probabilities are those of an engine without drafts.

Oracle: the same engine without a drafter, on the same route (the CPU handlers). Log probabilities are compared with ==, which
ties the logits of every verified row to those of a decode step, to the last bit. What sampled requests get is the matter of
test_speculation_law.py; that neighbours and launches change nothing, of test_speculation_independence.py.
"""

from dataclasses import replace

import pytest
from speculating import GREEDY, OFTEN, PROMPTS, ROWS, engine, told

from onecat_jax import SamplingParams


@pytest.fixture(scope="module")
def expected():
    return {p: told(engine(None).generate([p], GREEDY)[0]) for p in PROMPTS}


@pytest.mark.parametrize("method", OFTEN)
def test_greedy_text_and_logits_are_those_without_drafts(method, expected):
    for prompt in PROMPTS:
        output = engine(method).generate([prompt], GREEDY)[0]
        assert told(output) == expected[prompt], prompt


@pytest.mark.parametrize("method", OFTEN)
def test_they_are_in_mixed_batches_too(method, expected):
    wanted = [replace(GREEDY, max_tokens=48 - 5 * (i % 4)) for i in range(len(PROMPTS))]
    outputs = engine(method).generate(list(PROMPTS), wanted)
    for prompt, params, output in zip(PROMPTS, wanted, outputs, strict=True):
        tokens, tables, _, _ = expected[prompt]
        assert told(output)[:2] == (tokens[: params.max_tokens], tables[: params.max_tokens])


@pytest.mark.parametrize("method", OFTEN)
def test_drafts_are_made_and_many_are_accepted(method):
    output = engine(method).generate([PROMPTS[0]], GREEDY)[0]
    assert output.metrics.acceptance_length > 2
    assert output.metrics.rounds < GREEDY.max_tokens


def test_a_request_may_ask_for_fewer_drafts_or_none(expected):
    for drafts in (0, 1, 4):
        params = replace(GREEDY, extra_args={"num_speculative_tokens": drafts})
        output = engine("dflash").generate([PROMPTS[0]], params)[0]
        assert told(output) == expected[PROMPTS[0]]
        assert output.metrics.acceptance_length <= drafts + 1
    assert output.metrics.acceptance_length > 1.5


def test_a_stop_token_among_accepted_drafts_ends_the_request_there(expected):
    tokens, _, _, _ = expected[PROMPTS[0]]
    for place in range(3, 12):
        stop = tokens[place]
        first = tokens.index(stop)
        params = replace(GREEDY, stop_token_ids=[stop])
        sample = engine("dflash").generate([PROMPTS[0]], params)[0].outputs[0]
        assert sample.token_ids == tokens[: first + 1]
        assert sample.finish_reason == "stop"


@pytest.mark.parametrize("count", range(1, 12))
def test_max_tokens_is_never_exceeded(count, expected):
    sample = (
        engine("dflash").generate([PROMPTS[1]], replace(GREEDY, max_tokens=count))[0].outputs[0]
    )
    assert sample.token_ids == expected[PROMPTS[1]][0][:count]
    assert sample.finish_reason == "length"


def test_penalties_biases_and_min_tokens_reach_every_row_of_a_round():
    params = SamplingParams(
        temperature=0.0,
        max_tokens=40,
        min_tokens=30,
        presence_penalty=0.6,
        frequency_penalty=0.4,
        repetition_penalty=1.1,
        logit_bias={269: -3.0, 900: 2.0},
        logprobs=1,
    )
    for prompt in PROMPTS[:4]:
        plain, drafted = (engine(m).generate([prompt], params)[0] for m in (None, "dflash"))
        assert told(drafted) == told(plain)


def test_a_sampled_request_without_drafts_gets_what_it_gets_without_a_drafter():
    params = SamplingParams(temperature=0.9, top_p=0.95, top_k=40, seed=11, max_tokens=32)
    without = replace(params, extra_args={"num_speculative_tokens": 0})
    prompts = list(PROMPTS[:ROWS])
    plain = engine(None).generate(prompts, params)
    drafted = engine("dflash").generate(prompts, without)
    assert [told(o) for o in drafted] == [told(o) for o in plain]
