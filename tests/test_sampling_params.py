"""Request settings: what is accepted, what is refused and with which words."""

import dataclasses
import math

import numpy as np
import pytest

from onecat_jax.errors import RequestError
from onecat_jax.sampling import request_row
from onecat_jax.sampling_params import (
    SamplingParams,
    check_vocabulary,
    derived_seed,
    effective_stop_ids,
)

BAD = [
    ("temperature", -0.1, "[0, inf)"),
    ("temperature", math.nan, "[0, inf)"),
    ("temperature", math.inf, "[0, inf)"),
    ("temperature", True, "number"),
    ("temperature", "1", "number"),
    ("top_p", 0.0, "(0, 1]"),
    ("top_p", 1.01, "(0, 1]"),
    ("top_k", -2, "-1"),
    ("top_k", 2.0, "integer"),
    ("min_p", 1.5, "[0, 1]"),
    ("seed", 2**64, "18446744073709551615"),
    ("seed", 1.0, "integer"),
    ("max_tokens", 0, "1"),
    ("max_tokens", False, "integer"),
    ("min_tokens", 17, "max_tokens"),
    ("n", 0, "1"),
    ("logprobs", 21, "20"),
    ("prompt_logprobs", -1, "20"),
    ("ignore_eos", 1, "True or False"),
    ("detokenize", None, "True or False"),
    ("stop", "", "empty string"),
    ("stop", ["a", ""], "empty string"),
    ("stop", [1], "list of strings"),
    ("stop_token_ids", [-1], "0"),
    ("stop_token_ids", 5, "list of token ids"),
    ("stop_token_ids", list(range(17)), "16"),
    ("presence_penalty", 2.5, "[-2, 2]"),
    ("frequency_penalty", -2.01, "[-2, 2]"),
    ("frequency_penalty", math.nan, "[-2, 2]"),
    ("repetition_penalty", 0, "(0, inf)"),
    ("repetition_penalty", math.inf, "(0, inf)"),
    ("logit_bias", {3: 100.5}, "[-100, 100]"),
    ("logit_bias", {3: "1"}, "number"),
    ("logit_bias", {-1: 1.0}, "between 0 and 2147483647"),
    ("logit_bias", {"x": 1.0}, "integer from 0"),
    ("logit_bias", {"9" * 5000: 1.0}, "integer from 0"),
    ("logit_bias", {1.0: 1.0}, "integer from 0"),
    ("logit_bias", {True: 1.0}, "integer from 0"),
    ("logit_bias", [1, 2], "map token ids to numbers"),
    ("logit_bias", 5, "map token ids to numbers"),
    ("logit_bias", {3: 1.0, "3": 1.0}, "token 3 twice"),
    ("logit_bias", dict.fromkeys(range(301), 1.0), "301 ids; at most 300"),
]


@pytest.mark.parametrize(
    ("name", "value", "allowed"), BAD, ids=[f"{n}={v!r}"[:40] for n, v, _ in BAD]
)
def test_a_refusal_names_the_field_and_what_is_allowed(name, value, allowed):
    with pytest.raises(RequestError) as error:
        SamplingParams(**{name: value})
    assert name in str(error.value)
    assert allowed in str(error.value)


def test_the_ends_of_every_range_are_accepted():
    SamplingParams(presence_penalty=-2, frequency_penalty=2, repetition_penalty=1e-3)
    SamplingParams(repetition_penalty=7, logit_bias=dict.fromkeys(range(300), -100))


def test_biases_are_stored_by_id_whatever_they_came_as():
    want = ((3, -100.0), (20, 1.5))
    for given in ({20: 1.5, 3: -100}, {"20": 1.5, "3": -100}, [(20, 1.5), ("3", -100)]):
        assert SamplingParams(logit_bias=given).biases == want
    params = SamplingParams(logit_bias={np.int64(20): np.float32(1.5), 3: -100})
    assert params.biases == want
    assert [type(part) for part in params.biases[1]] == [int, float]
    assert dataclasses.replace(params, n=2).biases == want
    assert len({params, dataclasses.replace(params)}) == 1
    assert SamplingParams(logit_bias={}).biases == SamplingParams().biases == ()


def test_a_bias_of_a_token_that_does_not_exist_is_refused_with_both_numbers():
    params = SamplingParams(logit_bias={7: 1, 99: 1})
    check_vocabulary(params, 100)
    request_row(params, (), seed=0, prompt_length=1, vocab_size=100)
    with pytest.raises(RequestError, match="token 99, but the vocabulary has 99 tokens"):
        request_row(params, (), seed=0, prompt_length=1, vocab_size=99)


def test_defaults_are_those_of_vllm():
    params = SamplingParams()
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1.0, 1.0, 0, 0.0)
    assert (params.max_tokens, params.n, params.seed, params.logprobs) == (16, 1, None, None)


def test_settings_cannot_be_changed_afterwards():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().temperature = 0.5


def test_numpy_scalars_count_as_numbers():
    params = SamplingParams(
        temperature=np.float32(0.5), top_k=np.int64(3), stop_token_ids=[np.int32(4)]
    )
    assert params.stop_ids == (4,)
    assert type(params.stop_ids[0]) is int


def test_stop_values_are_normalised_to_tuples():
    assert SamplingParams().stop_strings == ()
    assert SamplingParams(stop="x").stop_strings == ("x",)
    assert SamplingParams(stop=["x", "y"]).stop_strings == ("x", "y")
    assert dataclasses.replace(SamplingParams(stop="x"), n=2).stop_strings == ("x",)


def test_stop_strings_without_text_are_refused():
    with pytest.raises(RequestError, match="detokenize"):
        SamplingParams(stop="x", detokenize=False)


def test_checkpoint_defaults_come_from_generation_config_and_overrides_win():
    config = {
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 20,
        "do_sample": True,
        "eos_token_id": [1],
        "min_p": None,
        "repetition_penalty": 1.05,
    }
    params = SamplingParams.from_generation_config(config, max_tokens=5, top_p=1.0)
    assert (params.temperature, params.top_p, params.top_k) == (0.7, 1.0, 20)
    assert (params.min_p, params.max_tokens) == (0.0, 5)
    assert params.repetition_penalty == 1.05


def test_do_sample_false_means_greedy():
    config = {"do_sample": False, "temperature": 0.7}
    assert SamplingParams.from_generation_config(config).temperature == 0.0


def test_stop_ids_join_the_models_own_without_repeats():
    params = SamplingParams(stop_token_ids=[7, 1])
    assert effective_stop_ids(params, [1, 2]) == (1, 2, 7)
    assert effective_stop_ids(dataclasses.replace(params, ignore_eos=True), [1, 2]) == (7, 1)


def test_samples_are_single_requests_with_their_own_seeds():
    one, two, three = SamplingParams(n=3, seed=5).samples()
    assert (one.n, one.seed) == (1, 5)
    assert len({one.seed, two.seed, three.seed}) == 3
    assert (two.seed, three.seed) == (derived_seed(5, 1), derived_seed(5, 2))
    assert all(p.seed is None for p in SamplingParams(n=2).samples())


def test_only_the_first_sample_scores_the_prompt():
    samples = SamplingParams(n=3, prompt_logprobs=2, logprobs=1).samples()
    assert [p.prompt_logprobs for p in samples] == [2, None, None]
    assert [p.logprobs for p in samples] == [1, 1, 1]


def test_seed_minus_one_means_none():
    assert SamplingParams(seed=-1).seed is None
    assert SamplingParams(seed=np.int64(-1)).seed is None


@pytest.mark.parametrize("seed", [np.int64(-5), np.int32(5), np.uint64(2**64 - 1)])
def test_a_seed_of_numpy_is_the_same_number(seed):
    params = SamplingParams(seed=seed, n=2)
    assert type(params.seed) is int
    assert params.samples() == SamplingParams(seed=int(seed), n=2).samples()
