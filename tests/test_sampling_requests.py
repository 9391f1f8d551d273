"""What penalties and biases do to whole requests: the counts that the engine keeps are those of prompt and answer so far.

Oracle: raw log probabilities that the same request reports. Additive penalties shift them, so each greedy token must be the
best of the 20 likeliest after the shift, as counted in Python; the rest can't win when penalties only lower. Embedded model,
float32.
"""

from collections import Counter
from dataclasses import replace

import pytest
from tiny_engine import GREEDY, PROMPTS, ids_of, tiny

from onecat_jax import SamplingParams
from onecat_jax.errors import RequestError


@pytest.fixture(scope="module")
def llm():
    return tiny()


def check_greedy(output, params: SamplingParams) -> int:
    """Every token is the best one after the shifts. Returns at how many places they changed the choice."""
    sample, counts, changed = output.outputs[0], Counter(), 0
    for token, table in zip(sample.token_ids, sample.logprobs, strict=True):
        likeliest = {i: entry.logprob for i, entry in table.items() if entry.rank <= 20}
        shifted = {
            i: value
            - params.presence_penalty * (counts[i] > 0)
            - params.frequency_penalty * counts[i]
            + dict(params.biases).get(i, 0.0)
            for i, value in likeliest.items()
        }
        best = max(shifted.values())
        assert shifted[token] >= best - 1e-4
        assert best >= min(likeliest.values())  # no token outside the table can win
        changed += table[token].rank != 1
        counts[token] += 1
    return changed


@pytest.mark.parametrize(
    "settings",
    [{"presence_penalty": 1.5}, {"frequency_penalty": 0.4}, {"presence_penalty": 0.5, "frequency_penalty": 0.2}],
    ids=str,
)  # fmt: skip
def test_each_greedy_token_is_the_best_after_the_penalties_of_the_answer_so_far(llm, settings):
    params = replace(GREEDY, max_tokens=48, logprobs=20, **settings)
    outputs = llm.generate(PROMPTS, params)
    assert sum(check_greedy(output, params) for output in outputs) > 10


def test_a_request_is_biased_against_its_favourites(llm):
    free = ids_of(llm.generate(PROMPTS[0], GREEDY)[0])
    biases = dict.fromkeys(free, -3.0)
    params = replace(GREEDY, logprobs=20, logit_bias=biases)
    assert check_greedy(llm.generate(PROMPTS[0], params)[0], params) > 1


def test_a_huge_repetition_penalty_repeats_nothing_of_prompt_or_answer(llm):
    params = replace(GREEDY, repetition_penalty=1e6, max_tokens=40)
    for output in llm.generate(PROMPTS, params):
        assert len(set(ids_of(output))) == 40
        assert not set(output.prompt_token_ids) & set(ids_of(output))


def test_a_large_bias_decides_and_a_large_negative_one_forbids(llm):
    want = llm.tokenizer.encode("!")[0]
    output = llm.generate(PROMPTS[0], replace(GREEDY, logit_bias={want: 100}))[0]
    assert set(ids_of(output)) == {want}
    free = llm.generate(PROMPTS[0], GREEDY)[0]
    forbidden = dict.fromkeys(ids_of(free), -100)
    got = llm.generate(PROMPTS[0], replace(GREEDY, logit_bias=forbidden))[0]
    assert not set(ids_of(got)) & set(forbidden)


def test_log_probabilities_are_those_of_the_model_whatever_the_penalties(llm):
    want = llm.tokenizer.encode("!")[0]
    params = replace(GREEDY, max_tokens=1, logprobs=3, logit_bias={want: 100})
    table = llm.generate(PROMPTS[0], params)[0].outputs[0].logprobs[0]
    raw = llm.generate(PROMPTS[0], replace(GREEDY, max_tokens=1, logprobs=3))[0].outputs[0]
    assert list(table)[1:] == list(raw.logprobs[0])
    assert table[want].logprob < -3
    assert table[want].rank > 3


def test_a_bias_of_a_token_that_the_model_lacks_is_refused_before_anything_runs(llm):
    with pytest.raises(RequestError, match="token 8192, but the vocabulary has 8192 tokens"):
        llm.generate([PROMPTS[0], "x"], [GREEDY, replace(GREEDY, logit_bias={8192: 1})])
    assert not llm._engine.scheduler.busy
