"""`functional.generate` gives each row what `LLM.generate` gives the same request, whatever its neighbours and its padding.

Oracle: the engine, one request each; and the function itself on other batches. Embedded model, float32, CPU handlers, where
equality is bitwise. Not covered: several devices (test_functional_ranks), parity with another implementation (test_parity).
"""

from dataclasses import replace

import jax
import numpy as np
import pytest
from functional_cases import (
    GREEDY,
    NEW,
    PROMPT_LENGTHS,
    ROWS,
    WIDTH,
    padded,
    random_prompts,
    rollout,
    tiny,
    token_lists,
)
from tiny_engine import tiny as tiny_llm

from onecat_jax import SamplingParams, functional
from onecat_jax.functional import EMPTY, LENGTH, STOPPED, UNHEALTHY
from onecat_jax.sampling_params import derived_seed

MIXED = (
    GREEDY,
    SamplingParams(temperature=0.8, top_p=0.9, seed=2**63 + 5, presence_penalty=0.5),
    SamplingParams(
        temperature=1.3, min_p=0.05, seed=-6, min_tokens=9, logit_bias={8184: 4.0, 17: 3.0}
    ),
    SamplingParams(
        temperature=0.7, top_k=20, top_p=0.8, seed=6, repetition_penalty=1.3, ignore_eos=True
    ),
)


@pytest.fixture(scope="module")
def prompts():
    return random_prompts()


@pytest.fixture(scope="module")
def mixed(prompts):
    model, _ = tiny()
    return rollout(prompts, functional.sampling(model, ROWS, MIXED))


def of_engine(prompts, params):
    asked = [replace(p, max_tokens=NEW, logprobs=0) for p in params]
    given = [{"prompt_token_ids": prompt} for prompt in prompts]
    return [output.outputs[0] for output in tiny_llm().generate(given, asked)]


def test_tokens_and_logprobs_equal_those_of_the_engine(prompts, mixed):
    expected = of_engine(prompts, MIXED)
    assert token_lists(mixed) == [list(e.token_ids) for e in expected]
    for row, e in enumerate(expected):
        scores = [
            entry[token].logprob for token, entry in zip(e.token_ids, e.logprobs, strict=True)
        ]
        found = mixed.logprobs[row, : len(scores)]
        np.testing.assert_array_equal(found, np.array(scores, np.float32))
    reasons = {"stop": STOPPED, "length": LENGTH}
    assert mixed.status.tolist() == [reasons[e.finish_reason] for e in expected]


def test_what_lies_behind_the_end_is_marked(mixed):
    behind = np.arange(NEW) >= mixed.lengths[:, None]
    assert (mixed.tokens[behind] == -1).all()
    assert (mixed.logprobs[behind] == 0).all()
    assert (mixed.tokens[~behind] >= 0).all()
    assert (mixed.logprobs[~behind] < 0).all()


@pytest.mark.parametrize("row", range(ROWS))
def test_a_row_alone_with_other_padding_has_the_same_bits(prompts, mixed, row):
    model, params = tiny()
    tokens, lengths = padded([prompts[row]], 200)
    settings = functional.sampling(model, 1, MIXED[row])
    alone = functional.generate(model, params, tokens, lengths, settings, max_new_tokens=NEW)
    for name in ("tokens", "lengths", "logprobs", "status"):
        np.testing.assert_array_equal(getattr(alone, name)[0], getattr(mixed, name)[row])


def test_empty_rows_get_nothing_and_full_rows_everything(prompts, mixed):
    model, _ = tiny()
    full = random_prompts([WIDTH], seed=1)[0]
    batch = [[], full, prompts[2], []]
    out = rollout(batch, functional.sampling(model, ROWS, [MIXED[0], GREEDY, MIXED[2], MIXED[3]]))
    assert out.lengths.tolist() == [0, NEW, int(mixed.lengths[2]), 0]
    assert (out.tokens[[0, 3]] == -1).all()
    assert out.status[[0, 3]].tolist() == [EMPTY, EMPTY]
    np.testing.assert_array_equal(out.tokens[2], mixed.tokens[2])
    assert token_lists(out)[1] == list(of_engine([full], [GREEDY])[0].token_ids)


def test_a_stop_id_ends_its_row_and_is_its_last_token(prompts, mixed):
    model, _ = tiny()
    free = token_lists(mixed)[0]
    stop = free[5]
    params = [replace(GREEDY, stop_token_ids=(stop,)), *MIXED[1:]]
    out = rollout(prompts, functional.sampling(model, ROWS, params))
    assert token_lists(out)[0] == free[: free.index(stop) + 1]
    assert out.status[0] == STOPPED
    np.testing.assert_array_equal(out.tokens[1:], mixed.tokens[1:])


def test_limits_cut_rows_and_change_nothing_before(prompts, mixed):
    model, _ = tiny()
    limits = np.array([3, NEW + 5, 0, 1])
    out = rollout(prompts, functional.sampling(model, ROWS, MIXED), limits=limits)
    for row, limit in enumerate(limits):
        assert token_lists(out)[row] == token_lists(mixed)[row][:limit]
    assert out.status[[0, 2, 3]].tolist() == [LENGTH] * 3


def test_repeated_rows_with_derived_seeds_are_the_samples_of_a_request(prompts):
    model, _ = tiny()
    params = SamplingParams(temperature=1.0, seed=9, ignore_eos=True)
    seeds = [derived_seed(9, i) for i in range(ROWS)]
    out = rollout([prompts[1]] * ROWS, functional.sampling(model, ROWS, params, seed=seeds))
    asked = replace(params, n=ROWS, max_tokens=NEW)
    expected = tiny_llm().generate({"prompt_token_ids": prompts[1]}, asked)[0]
    assert token_lists(out) == [list(o.token_ids) for o in expected.outputs]
    assert len({tuple(tokens) for tokens in token_lists(out)}) == ROWS


def test_a_key_gives_every_row_randomness_of_its_own(prompts):
    model, _ = tiny()

    def drawn(key):
        params = SamplingParams(temperature=1.0, ignore_eos=True)
        return rollout([prompts[1]] * ROWS, functional.sampling(model, ROWS, params, seed=key))

    first, again, other = (drawn(jax.random.key(k)).tokens for k in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert len({tuple(row) for row in np.concatenate([first, other]).tolist()}) == 2 * ROWS


def test_logprobs_of_generated_tokens_are_those_that_generate_reported(prompts, mixed):
    model, params = tiny()
    joined = [p + new for p, new in zip(prompts, token_lists(mixed), strict=True)]
    tokens, lengths = padded(joined, WIDTH + NEW)
    found = np.asarray(functional.logprobs(model, params, tokens, lengths))
    for row, (prompt, new) in enumerate(zip(PROMPT_LENGTHS, mixed.lengths, strict=True)):
        made = found[row, prompt : prompt + new]
        np.testing.assert_allclose(made, mixed.logprobs[row, :new], atol=2e-5, rtol=0)
        assert (found[row, 1 : prompt + new] < 0).all()
        assert (found[row, prompt + new :] == 0).all()
    assert (found[:, 0] == 0).all()


def test_a_row_of_logits_that_are_not_numbers_ends_alone(prompts, mixed):
    model, params = tiny()
    table = params.embed.weight[0].at[7].set(np.nan)  # the row of token 7 alone
    damaged = replace(params, embed=replace(params.embed, weight=table[None]))
    tokens, lengths = padded([[7], *prompts[1:]])
    settings = functional.sampling(model, ROWS, MIXED)
    out = functional.generate(model, damaged, tokens, lengths, settings, max_new_tokens=NEW)
    assert (int(out.lengths[0]), int(out.status[0])) == (0, UNHEALTHY)
    np.testing.assert_array_equal(out.tokens[1:], mixed.tokens[1:])
