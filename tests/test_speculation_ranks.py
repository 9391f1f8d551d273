"""With drafts too, the number of ranks changes no token, by the gap rule; on the same ranks drafts change no bit.

Oracle: one rank without drafts, whose tokens are those with drafts (test_speculation_exact). Exceptions by the gap rule are
counted and printed, see test_independence_ranks. Two and four fake CPU devices, embedded model, float32; the draft has two
key/value heads, so that four ranks hold each twice. Not covered: sampled requests, real links between devices.
"""

from dataclasses import replace
from functools import cache

import pytest
from independence import Case, run, use_buckets
from speculating import METHODS, PROMPTS, told
from test_independence_ranks import GAP, GapRule

from onecat_jax import LLM, RequestOutput, SamplingParams
from onecat_jax.buckets import Buckets

ROWS = 4
OFF = {"num_speculative_tokens": 0}
GREEDY = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True, logprobs=3)


@cache
def engine(method: str | None, ranks: int) -> LLM:
    llm = LLM(
        "tiny",
        tensor_parallel_size=ranks,
        max_model_len=256,
        max_num_seqs=ROWS,
        max_num_batched_tokens=64,
        speculative_config=None if method is None else METHODS[method],
    )
    use_buckets(llm, Buckets((64,), (ROWS,)))  # few programs
    return llm


def given(params: SamplingParams) -> list[Case]:
    encode = engine(None, 1).tokenizer.encode
    return [Case(tuple(encode(text)), params) for text in PROMPTS]


@cache
def one_rank() -> list[RequestOutput]:
    return run(engine(None, 1), given(GREEDY))


PAIRS = [
    ("dflash", 2),
    ("dflash", 4),
    ("mtp", 4),
    pytest.param("mtp", 2, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("method", "ranks"), PAIRS)
def test_tokens_are_those_of_one_rank(method, ranks):
    rule, cases = GapRule(), given(GREEDY)
    found = run(engine(method, ranks), cases)
    for case, one, other in zip(cases, one_rank(), found, strict=True):
        rule.check(case, one.outputs[0], other.outputs[0])
    lengths = [output.metrics.acceptance_length for output in found]
    print(
        f"\n{method} on {ranks} ranks: {rule.tokens} tokens compared, {rule.ties} exceptions by ties below {GAP} nats, log "
        f"probabilities differ by up to {rule.largest:.1e}; {sum(lengths) / len(lengths):.2f} tokens per round"
    )
    assert rule.tokens > 400
    assert rule.ties < 3
    assert sum(lengths) / len(lengths) > 2


@pytest.mark.parametrize(("method", "ranks"), PAIRS)
def test_on_the_same_ranks_drafts_change_no_bit(method, ranks):
    """Tokens, texts and log probabilities."""
    llm = engine(method, ranks)
    plain = run(llm, given(replace(GREEDY, extra_args=OFF)))
    assert {output.metrics.acceptance_length for output in plain} == {1.0}
    for without, drafted in zip(plain, run(llm, given(GREEDY)), strict=True):
        assert told(drafted) == told(without)
