"""The engine's greedy rounds with the embedded draft accept what an implementation without any cache accepts.

Oracle: golden/dflash/tiny_rounds.json (PyTorch, see oracle/make_dflash_rounds.py). Its first token is made part of the prompt,
so that rounds begin where its rounds begin. Covered: tokens and accepted drafts per round, several requests at once. Not
covered: temperatures, budgets and stops inside a round, ranks.
"""

import json
from functools import cache

import dflash_oracle_weights as dw
import pytest

from onecat_jax import LLM, SamplingParams

CASES = json.loads((dw.GOLDEN / "tiny_rounds.json").read_text(encoding="utf-8"))["cases"]
_MORE = 16  # tokens beyond the record's, so that the budget doesn't shorten its last round


@cache
def engine() -> LLM:
    return LLM(
        model="tiny",
        max_model_len=256,
        max_num_seqs=4,
        max_num_batched_tokens=128,
        speculative_config={"method": "dflash"},
    )


def prompt_of(case: dict) -> dict:
    return {"prompt_token_ids": [*case["prompt_token_ids"], case["tokens"][0]]}


def greedy(case: dict) -> SamplingParams:
    count = len(case["tokens"]) - 1 + _MORE
    return SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)


def check(case: dict, output) -> None:
    expected, rounds = case["tokens"][1:], len(case["accepted"])
    assert list(output.outputs[0].token_ids[: len(expected)]) == expected
    assert list(output.metrics.accepted_per_round[:rounds]) == case["accepted"]


@pytest.mark.parametrize("case", CASES, ids=[str(i) for i in range(len(CASES))])
def test_rounds_of_one_request(case):
    check(case, engine().generate([prompt_of(case)], greedy(case))[0])


def test_rounds_of_all_requests_at_once():
    outputs = engine().generate(list(map(prompt_of, CASES)), list(map(greedy, CASES)))
    for case, output in zip(CASES, outputs, strict=True):
        check(case, output)


def test_the_record_holds_rounds_of_every_length():
    assert {n for case in CASES for n in case["accepted"]} == set(range(8))
