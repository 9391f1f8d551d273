"""Drafts change no token of a whole file of prompts: 256 greedy tokens each, alone and in batches of two, four and eight, and
on four ranks.

Oracle: the same engine with drafts turned off, bitwise on the same number of ranks; one rank for four, by the gap rule of
test_independence_ranks. The file, one JSON object with `token_ids` per line, is given by `pytest -m oracle --prompts FILE` and
isn't part of the repository; own prompts are in test_speculation_exact.py, which always runs.
"""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from independence import Case, run
from speculating import METHODS, told
from test_independence_ranks import GAP, GapRule

from onecat_jax import LLM, RequestOutput, SamplingParams

pytestmark = pytest.mark.oracle
TOKENS, CONTEXT = 256, 1024
GREEDY = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, logprobs=3)
ALONE = replace(GREEDY, extra_args={"num_speculative_tokens": 0})


@pytest.fixture(scope="module")
def prompts(request) -> list[tuple[int, ...]]:
    path = request.config.getoption("--prompts")
    if path is None:
        pytest.skip("needs a file of prompts: pytest -m oracle --prompts FILE")
    return [tuple(json.loads(line)["token_ids"]) for line in Path(path).read_text().splitlines()]


@cache
def engine(method: str, rows: int, ranks: int = 1) -> LLM:
    return LLM(
        "tiny",
        tensor_parallel_size=ranks,
        max_model_len=CONTEXT,
        max_num_seqs=rows,
        speculative_config=METHODS[method],
    )


@cache
def one_by_one(prompts: tuple[tuple[int, ...], ...]) -> list[RequestOutput]:
    """Without drafts, on one rank."""
    return [run(engine("dflash", 1), [Case(ids, ALONE)])[0] for ids in prompts]


@pytest.mark.parametrize("method", ["dflash", "mtp"])
@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_tokens_and_logits_are_those_without_drafts(prompts, method, rows):
    llm = engine(method, rows)
    same, rounds = 0, 0
    for first in range(0, len(prompts), rows):
        found = run(llm, [Case(ids, GREEDY) for ids in prompts[first : first + rows]])
        expected = one_by_one(tuple(prompts))[first : first + rows]
        for output, without in zip(found, expected, strict=True):
            assert told(output) == told(without)
            same, rounds = same + 1, rounds + output.metrics.rounds
    print(f"\n{method}, {rows} rows: {same} requests of {TOKENS} tokens in {rounds} rounds")
    assert rounds < 0.6 * same * TOKENS


def test_four_ranks_part_at_ties_only(prompts):
    rule, llm = GapRule(), engine("dflash", 4, ranks=4)
    cases = [Case(ids, GREEDY) for ids in prompts]
    found = [output for at in range(0, len(cases), 4) for output in run(llm, cases[at : at + 4])]
    for case, one, other in zip(cases, one_by_one(tuple(prompts)), found, strict=True):
        rule.check(case, one.outputs[0], other.outputs[0])
    print(f"\n{rule.tokens} tokens on 4 ranks, {rule.ties} exceptions by ties below {GAP} nats")
    assert rule.tokens > 0.9 * len(prompts) * TOKENS
    assert rule.ties <= len(prompts) // 16
