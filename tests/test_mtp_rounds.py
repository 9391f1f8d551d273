"""The engine's greedy rounds with the MTP head accept what an implementation without any cache accepts.

Oracle: golden/dflash/tiny_mtp_rounds.json (PyTorch, see oracle/make_dflash_rounds.py). Its first token is made part of the
prompt, so that rounds begin where its rounds begin. Covered: tokens and accepted drafts per round, several requests at once.
Not covered: temperatures (tests of acceptance and of the drafter).
"""

import json
from functools import cache
from pathlib import Path

import pytest

from onecat_jax import LLM, SamplingParams

GOLDEN = Path(__file__).parent / "golden" / "dflash" / "tiny_mtp_rounds.json"
_MORE = 8  # tokens beyond the golden's, so that the budget doesn't shorten its last rounds
CASES = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]


@cache
def engine() -> LLM:
    return LLM(
        model="tiny",
        max_model_len=256,
        max_num_seqs=4,
        max_num_batched_tokens=128,
        speculative_config={"method": "mtp", "num_speculative_tokens": 3},
    )


def prompt_of(case: dict) -> dict:
    return {"prompt_token_ids": [*case["prompt_token_ids"], case["tokens"][0]]}


def greedy(case: dict) -> SamplingParams:
    count = len(case["tokens"]) - 1 + _MORE
    return SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)


def check(case: dict, output) -> None:
    rounds = len(case["accepted"])
    assert list(output.metrics.accepted_per_round[:rounds]) == case["accepted"]
    expected = case["tokens"][1:]
    assert list(output.outputs[0].token_ids[: len(expected)]) == expected


@pytest.mark.parametrize("case", CASES, ids=[str(i) for i in range(len(CASES))])
def test_rounds_of_one_request(case):
    check(case, engine().generate([prompt_of(case)], greedy(case))[0])


def test_rounds_of_all_requests_at_once():
    outputs = engine().generate(list(map(prompt_of, CASES)), list(map(greedy, CASES)))
    for case, output in zip(CASES, outputs, strict=True):
        check(case, output)


def test_enough_drafts_were_accepted_to_mean_something():
    accepted = [n for case in CASES for n in case["accepted"]]
    assert set(accepted) == {0, 1, 2, 3}
