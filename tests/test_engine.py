"""The engine gives each request what it would get alone, and stays usable whatever happens.

Oracle: the same engine with one request at a time. Embedded model, float32, default route (CPU handlers), where equality is
bitwise. Not covered: parity with another implementation (test_parity), tensor parallelism.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest
from tiny_engine import GREEDY, PROMPTS, ids_of, tiny

from onecat_jax import SamplingParams
from onecat_jax.buckets import MAX_PROGRAMS, Buckets
from onecat_jax.errors import EngineError, RequestError

MIXED = (
    GREEDY,
    SamplingParams(temperature=0.8, top_p=0.9, seed=3, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=1.0, top_k=5, seed=4, max_tokens=33, ignore_eos=True),
    SamplingParams(temperature=1.3, min_p=0.1, seed=5, max_tokens=7, repetition_penalty=1.3),
    SamplingParams(temperature=0.7, top_k=20, top_p=0.8, seed=6, max_tokens=40),
)


@pytest.fixture(scope="module")
def llm():
    return tiny()


def test_a_request_gets_the_same_tokens_alone_and_in_a_mixed_batch(llm):
    alone = [llm.generate(p, s)[0].outputs[0] for p, s in zip(PROMPTS, MIXED, strict=True)]
    together = [o.outputs[0] for o in llm.generate(PROMPTS, MIXED)]
    assert [o.token_ids for o in together] == [o.token_ids for o in alone]
    assert [o.text for o in together] == [o.text for o in alone]


def test_a_stream_adds_up_to_the_result_of_generate(llm):
    whole = llm.generate(PROMPTS[0], GREEDY)[0].outputs[0]
    deltas = list(llm.stream(PROMPTS[0], GREEDY))
    assert "".join(d.text for d in deltas) == whole.text
    assert sum((d.token_ids for d in deltas), ()) == whole.token_ids
    assert [d.finished for d in deltas] == [False] * (len(deltas) - 1) + [True]
    assert deltas[-1].output.outputs[0].token_ids == whole.token_ids


def test_more_requests_than_rows_all_finish_in_order(llm):
    prompts = [f"value_{i} = " for i in range(11)]
    outputs = llm.generate(prompts, replace(GREEDY, max_tokens=5))
    assert [o.prompt for o in outputs] == prompts
    assert all(len(ids_of(o)) == 5 for o in outputs)


def test_varied_requests_after_warm_up_compile_nothing(llm):
    llm.warm_up(scores=True)
    before = llm.stats()["compiles"]
    rng = np.random.default_rng(0)
    for turn in range(20):
        prompts = [
            {"prompt_token_ids": rng.integers(0, 8000, rng.integers(1, 300)).tolist()}
            for _ in range(1 + turn % 4)
        ]
        params = [
            SamplingParams(
                temperature=float(rng.choice([0, 0.5, 1.2])),
                top_k=int(rng.choice([0, 7])),
                top_p=float(rng.choice([1.0, 0.7])),
                min_p=float(rng.choice([0.0, 0.05])),
                max_tokens=int(rng.integers(1, 12)),
                n=int(rng.choice([1, 1, 3])),
                logprobs=rng.choice([None, 0, 5, 20]),
                prompt_logprobs=rng.choice([None, None, 0, 9]),
                presence_penalty=float(rng.choice([0.0, 0.5])),
                frequency_penalty=float(rng.choice([0.0, -0.5])),
                repetition_penalty=float(rng.choice([1.0, 1.2])),
                logit_bias=dict.fromkeys(range(turn), 1.0),
            )
            for _ in prompts
        ]
        llm.generate(prompts, params)
    assert llm.stats()["compiles"] == before


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 16, 64, 100, 256])
@pytest.mark.parametrize("tokens", [64, 512, 2048, 8192, 65536])
def test_a_warmed_profile_has_at_most_sixteen_programs(rows, tokens):
    buckets = Buckets.plan(tokens, rows, 1)
    assert buckets.programs <= MAX_PROGRAMS
    assert buckets.rows_for(rows) == rows
    assert buckets.tokens_for(buckets.chunk) == buckets.tokens_for(buckets.chunk, scored=True)
    with_scores = buckets.programs + buckets.scored_programs
    if rows <= 8 and tokens <= 512:  # the defaults and below
        assert with_scores <= MAX_PROGRAMS


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_no_program_has_fewer_rows_than_wanted(rows):
    buckets = Buckets.plan(64, rows, 2)
    assert min(buckets.decode_rows) == 2
    assert buckets.decode_rows[-1] == max(rows, 2)
    assert buckets.rows_for(1) == 2


def test_too_many_programs_to_warm_are_refused_with_both_numbers(llm, monkeypatch):
    monkeypatch.setattr(llm._engine, "buckets", Buckets.plan(8192, 64, 1))
    with pytest.raises(EngineError, match=r"makes 31 programs, at most 16 are compiled ahead"):
        llm.warm_up(scores=True)


def test_prompt_logprobs_equal_the_logprobs_of_generating_the_same_tokens(llm):
    first = llm.generate(PROMPTS[0], replace(GREEDY, logprobs=3))[0]
    ids = first.prompt_token_ids + ids_of(first)
    second = llm.generate(
        {"prompt_token_ids": ids}, SamplingParams(max_tokens=1, prompt_logprobs=3)
    )[0]
    assert second.prompt_logprobs[0] is None
    assert len(second.prompt_logprobs) == len(ids)
    new = second.prompt_logprobs[len(first.prompt_token_ids) :]
    for token, made, scored in zip(ids_of(first), first.outputs[0].logprobs, new, strict=True):
        assert scored[token].logprob == pytest.approx(made[token].logprob, abs=2e-4)
        assert made[token].rank == 1
        assert list(made)[:3] == list(scored)[:3]
    total = sum(
        made[t].logprob for t, made in zip(ids_of(first), first.outputs[0].logprobs, strict=True)
    )
    assert first.outputs[0].cumulative_logprob == pytest.approx(total)


def test_n_samples_share_a_seed_and_differ(llm):
    params = SamplingParams(temperature=1.0, n=3, seed=9, max_tokens=12, ignore_eos=True)
    output = llm.generate(PROMPTS[1], params)[0]
    assert [o.index for o in output.outputs] == [0, 1, 2]
    assert len({o.token_ids for o in output.outputs}) == 3
    assert llm.generate(PROMPTS[1], replace(params, n=1))[0].outputs[0].token_ids == ids_of(output)


def test_generation_ends_at_an_end_token_and_reports_it(llm):
    free = llm.generate(PROMPTS[0], GREEDY)[0]
    stop = ids_of(free)[9]
    cut = llm.generate(PROMPTS[0], replace(GREEDY, stop_token_ids=[stop]))[0].outputs[0]
    end = ids_of(free).index(stop)
    assert cut.token_ids == ids_of(free)[: end + 1]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)


def test_the_earliest_stop_string_ends_the_text_before_it(llm):
    text = llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].text
    early, late = text[10:14], text[20:24]
    cut = llm.generate(PROMPTS[0], replace(GREEDY, stop=[late, early]))[0].outputs[0]
    assert cut.text == text[: text.index(early)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", early)
    streamed = list(llm.stream(PROMPTS[0], replace(GREEDY, stop=[late, early])))
    assert "".join(d.text for d in streamed) == cut.text
    assert sum((d.token_ids for d in streamed), ()) == cut.token_ids


def test_a_stream_left_early_frees_its_pages(llm):
    pool = llm._engine.scheduler.pool
    before = (len(pool.free_pages), len(pool.free_slots))
    stream = llm.stream(PROMPTS[0], GREEDY)
    next(stream)
    assert len(pool.free_slots) < before[1]
    stream.close()
    assert (len(pool.free_pages), len(pool.free_slots)) == before


def test_a_prompt_that_is_too_long_is_refused_with_both_numbers(llm):
    with pytest.raises(
        RequestError, match=r"the prompt has 512 tokens; max_model_len 512 leaves room for 511"
    ):
        llm.generate({"prompt_token_ids": [1] * 512}, GREEDY)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty"),
        ({"prompt_token_ids": []}, "the prompt is empty"),
        (
            {"prompt_token_ids": [1, 8192]},
            r"prompt_token_ids\[1\] is 8192; an integer from 0 to 8191",
        ),
        ({"prompt_token_ids": [1, -1]}, r"prompt_token_ids\[1\] is -1"),
        ({"prompt_token_ids": [1.5]}, r"prompt_token_ids\[0\] is 1.5"),
        ({"text": "x"}, r"'prompt' \(a text\) or 'prompt_token_ids' is needed"),
    ],
)
def test_a_bad_prompt_is_refused_before_anything_runs(llm, prompt, message):
    with pytest.raises(RequestError, match=message):
        llm.generate([PROMPTS[0], prompt], GREEDY)
    assert not llm._engine.scheduler.busy


def test_the_longest_prompt_still_gets_its_one_token(llm):
    output = llm.generate({"prompt_token_ids": [5] * 511}, GREEDY)[0].outputs[0]
    assert (len(output.token_ids), output.finish_reason) == (1, "length")


def test_a_failed_launch_loses_its_requests_and_nothing_else(llm, monkeypatch):
    expected = ids_of(llm.generate(PROMPTS[0], GREEDY)[0])

    def broken(*args, **kwargs):
        raise jax.errors.JaxRuntimeError("INTERNAL: planted")

    stream = llm.stream(PROMPTS[1], GREEDY)
    next(stream)
    with monkeypatch.context() as patch:
        patch.setattr(llm._engine.programs, "call", broken)
        with pytest.raises(EngineError, match=r"1 running requests were lost: INTERNAL: planted"):
            list(stream)
    assert not llm._engine.scheduler.busy
    assert ids_of(llm.generate(PROMPTS[0], GREEDY)[0]) == expected


def test_logits_that_are_not_numbers_end_that_request_alone(llm):
    engine = llm._engine
    healthy = {"prompt_token_ids": [11, 12, 13]}
    expected = ids_of(llm.generate(healthy, GREEDY)[0])
    sound = engine.params
    table = sound.target.embed.weight[0].at[7].set(np.nan)  # the row of token 7 alone
    damaged = replace(sound.target.embed, weight=table[None])
    engine.params = replace(sound, target=replace(sound.target, embed=damaged))
    try:
        outputs = llm.generate([{"prompt_token_ids": [11, 7]}, healthy], GREEDY)
    finally:
        engine.params = sound
    bad, good = outputs[0].outputs[0], outputs[1]
    assert bad.finish_reason == "error"
    assert "NaN or infinity" in bad.stop_reason
    assert ids_of(good) == expected
