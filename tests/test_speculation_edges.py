"""At the edges too drafts change nothing but the time: whatever a draft, a neighbour or a reader does, texts stay the target's.

Oracle: the same engine without a drafter, with == for log probabilities; for samples of one prompt, the same requests sent one
by one. Ranks and neighbours in general are the matter of test_speculation_ranks.py and test_speculation_independence.py.
"""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import pytest
from speculating import GREEDY, PROMPTS, engine, told

from onecat_jax import LLM, SamplingParams
from onecat_jax.speculation.statistics import Statistics

SHORT = replace(GREEDY, max_tokens=16)
DRAFTED = ("dflash", "mtp")


def without(prompt, params=SHORT):
    return told(engine(None).generate([prompt], params)[0])


def nothing_left(llm):
    core = llm._engine
    return not core.scheduler.busy and not core.scheduler.running


def spoiled(tree, value):
    """Floating-point arrays filled with a value."""
    return jax.tree.map(
        lambda a: jnp.full_like(a, value) if jnp.issubdtype(a.dtype, jnp.floating) else a, tree
    )


@pytest.fixture
def lend():
    """Gives an engine other parameters, and an empty state of finite numbers and the old ones at the end."""
    changed = []

    def lent(core, params):
        changed.append((core, core.params))
        core.params = params
        return core

    yield lent
    for core, params in changed:
        core.params, core.state = params, core.new_state()


# What a draft is


@pytest.mark.parametrize(
    ("value", "temperature"),
    [(float("nan"), 0.0), (float("nan"), 0.8), (float("inf"), 0.0), (0.0, 0.0)],
)
def test_a_ruined_draft_costs_time_alone(value, temperature, lend):
    llm = engine("dflash")
    core = llm._engine
    lend(core, replace(core.params, draft=spoiled(core.params.draft, value)))
    params = replace(SHORT, temperature=temperature, seed=5)
    # Sampled rows too: no draft is drawn where no score is a number.
    assert told(llm.generate([PROMPTS[0]], params)[0]) == without(PROMPTS[0], params)


def test_a_ruined_mtp_head_costs_time_alone(lend):
    llm = engine("mtp")
    core = llm._engine
    target = core.params.target
    broken = replace(target, mtp=spoiled(target.mtp, float("nan")))
    lend(core, replace(core.params, target=broken))
    assert told(llm.generate([PROMPTS[0]], SHORT)[0]) == without(PROMPTS[0])


@pytest.mark.parametrize("method", DRAFTED)
def test_logits_that_are_not_numbers_end_that_request_alone(method, lend):
    llm, healthy = engine(method), [11, 12, 13]
    expected = without(healthy)
    core = llm._engine
    target = core.params.target
    table = target.embed.weight[0].at[7].set(float("nan"))  # the row of token 7 alone
    embed = replace(target.embed, weight=table[None])
    lend(core, replace(core.params, target=replace(target, embed=embed)))
    bad, good = llm.generate([[11, 7], healthy], SHORT)
    assert bad.outputs[0].finish_reason == "error"
    assert "NaN or infinity" in bad.outputs[0].stop_reason
    assert told(good) == expected
    assert told(llm.generate([healthy], SHORT)[0]) == expected  # in the slot that it left


# What a request is


@pytest.mark.parametrize("method", DRAFTED)
@pytest.mark.parametrize("prompt", [[0], [5], [9] * 6, list(range(40, 105))], ids=len)
def test_prompts_of_any_length_get_the_targets_text(method, prompt):
    assert told(engine(method).generate([prompt], SHORT)[0]) == without(prompt)


@pytest.mark.parametrize("method", DRAFTED)
def test_samples_that_start_together_are_those_of_requests_of_their_own(method):
    params = SamplingParams(
        temperature=0.8, seed=3, n=3, max_tokens=16, ignore_eos=True, logprobs=1
    )
    llm = engine(method)
    together = llm.generate([PROMPTS[1]], params)[0]
    apart = [llm.generate([PROMPTS[1]], own)[0] for own in params.samples()]
    for sample, alone in zip(together.outputs, apart, strict=True):
        assert sample.token_ids == alone.outputs[0].token_ids
        assert sample.text == alone.outputs[0].text


@pytest.mark.parametrize("method", DRAFTED)
def test_a_stop_string_inside_accepted_drafts_cuts_there(method):
    text = without(PROMPTS[0])[3]
    for at in (4, 9, 15):
        params = replace(SHORT, stop=[text[at : at + 2]])
        assert told(engine(method).generate([PROMPTS[0]], params)[0]) == without(PROMPTS[0], params)


def test_prompt_scores_and_ends_are_the_targets():
    params = replace(SHORT, prompt_logprobs=2, min_tokens=10, ignore_eos=False)
    plain, drafted = (engine(m).generate([PROMPTS[2]], params)[0] for m in (None, "dflash"))
    assert told(drafted) == told(plain)
    assert drafted.prompt_logprobs == plain.prompt_logprobs


@pytest.mark.parametrize("method", DRAFTED)
def test_a_stream_left_early_leaves_nothing_behind(method):
    llm = engine(method)
    expected = without(PROMPTS[3])
    for deltas in (1, 3):
        stream = llm.stream(PROMPTS[0], SHORT)
        for _ in range(deltas):
            next(stream)
        assert told(llm.generate([PROMPTS[3]], SHORT)[0]) == expected  # beside it
        stream.close()
        assert nothing_left(llm)
    assert told(llm.generate([PROMPTS[3]], SHORT)[0]) == expected


def test_deltas_add_up_to_the_text():
    deltas = list(engine("dflash").stream(PROMPTS[0], SHORT))
    tokens, _, _, text = without(PROMPTS[0])
    assert "".join(delta.text for delta in deltas) == text
    assert tuple(t for delta in deltas for t in delta.token_ids) == tuple(tokens)


# What an engine is


@cache
def tiny_room() -> LLM:
    """One request at a time, pages of 256 tokens, a draft cache in FP8."""
    speculative = {"method": "dflash", "kv_cache_dtype": "fp8_e4m3"}
    return LLM(
        "tiny", max_model_len=24, max_num_seqs=1, block_size=256, speculative_config=speculative
    )


@pytest.mark.parametrize("room", [1, 2, 20])
def test_a_context_shorter_than_a_block_and_than_a_page(room):
    prompt = list(range(40, 44))
    llm = tiny_room()
    expected = without(prompt, replace(SHORT, max_tokens=room))
    assert told(llm.generate([prompt], replace(SHORT, max_tokens=room))[0]) == expected
    longest = [9] * (llm.max_model_len - 1)
    output = llm.generate([longest], replace(SHORT, max_tokens=None))[0]
    assert told(output) == without(longest, replace(SHORT, max_tokens=1))


def test_the_time_of_rounds_leaves_compiling_out(monkeypatch):
    core = tiny_room()._engine
    call = core.programs.call

    def compiling(*arguments):  # says that it took 1000 seconds, and takes none
        core.programs.compile_seconds += 1000
        return call(*arguments)

    monkeypatch.setattr(core, "statistics", Statistics())
    monkeypatch.setattr(core.programs, "compile_seconds", 0.0)
    monkeypatch.setattr(core.programs, "call", compiling)
    tiny_room().generate([[5]], replace(SHORT, max_tokens=1))
    assert sum(core.statistics.seconds.values()) == pytest.approx(-1000, abs=500)
