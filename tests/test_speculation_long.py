"""Long texts with drafts are those without: across pages, launches, and the end of the drafter's ring, again and again.

Oracles: the same engine without drafts, for tokens and log probabilities; for what the drafter proposes, one whose ring holds
the whole text, so that nothing ever lies where something else lay before. Embedded model and draft (window of 512), greedy,
float32, CPU handlers. Not covered: sampled requests.
"""

from dataclasses import replace
from functools import cache

import pytest
from independence import use_buckets
from speculating import told

from onecat_jax import LLM, RequestOutput, SamplingParams
from onecat_jax.buckets import Buckets
from onecat_jax.state import DraftWindow

OFF = {"num_speculative_tokens": 0}
METHODS = {
    "dflash": {"method": "dflash"},
    "dflash and lookup": {"method": "dflash", "adaptive_lookup": True},
}
PROMPT = "class Stack:\n    def __init__(self):\n"


@cache
def engine(method: str, context: int) -> LLM:
    llm = LLM(
        "tiny",
        max_model_len=context,
        max_num_seqs=1,
        max_num_batched_tokens=64,
        speculative_config=METHODS[method],
    )
    use_buckets(llm, Buckets((64,), (1,)))
    return llm


def greedy(count: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, logprobs=0)


def generate(llm: LLM, params: SamplingParams) -> RequestOutput:
    return llm.generate([PROMPT], params)[0]


def assert_plain(llm: LLM, params: SamplingParams) -> RequestOutput:
    """Tokens and log probabilities are those without drafts."""
    drafted = generate(llm, params)
    plain = generate(llm, replace(params, extra_args=OFF))
    assert plain.metrics.acceptance_length == 1.0
    assert len(plain.outputs[0].token_ids) == params.max_tokens
    assert told(drafted) == told(plain)
    return drafted


def ring_tokens(llm: LLM) -> int:
    return llm._engine.state.draft.window.tokens


def test_a_text_longer_than_the_ring_is_the_one_without_drafts():
    llm = engine("dflash", 768)
    assert ring_tokens(llm) < 600
    metrics = assert_plain(llm, greedy(700)).metrics
    print(f"\n700 tokens in {metrics.rounds} rounds, {metrics.acceptance_length:.2f} per round")
    assert metrics.acceptance_length > 2


def test_drafts_behind_the_end_of_the_ring_are_those_of_a_ring_without_end(monkeypatch):
    wrapped = generate(engine("dflash", 768), greedy(700))

    def whole(window: int | None, max_len: int, rows: int, page_size: int) -> int:
        return -(-(max_len + rows) // page_size)

    monkeypatch.setattr(DraftWindow, "ring_pages", staticmethod(whole))
    llm = engine.__wrapped__("dflash", 768)
    assert ring_tokens(llm) >= 768
    straight = generate(llm, greedy(700))
    assert wrapped.metrics.accepted_per_round == straight.metrics.accepted_per_round
    assert told(wrapped) == told(straight)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_six_thousand_tokens_are_those_without_drafts(method):
    llm = engine(method, 8192)
    metrics = assert_plain(llm, greedy(6000)).metrics
    print(f"\n{method}: {metrics.rounds} rounds, {metrics.acceptance_length:.2f} tokens per round")
    assert metrics.acceptance_length > 2
