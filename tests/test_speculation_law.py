"""Sampled texts with drafts have the distribution of texts without: the first three tokens together, and the length.

Oracle: the same engine without a drafter, with other seeds (with the same seeds the two samples wouldn't be independent). A
two-sample chi-square over cells that hold five each in expectation; Kolmogorov-Smirnov for the lengths, where a bias makes the
end-of-sequence token likely. The same statistics must refuse a fault planted in the acceptance. Rounds one by one against exact
laws are the matter of test_acceptance_law.
"""

import importlib
from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from independence import use_buckets
from scipy import stats
from speculating import PROMPTS

from onecat_jax import LLM, SamplingParams
from onecat_jax.buckets import Buckets

acceptance = importlib.import_module("onecat_jax.sampling.acceptance")

ROWS, LENGTH, FIRST = 64, 6, 3
PROMPT = PROMPTS[0]
END_BIAS = 9.5
METHODS = {
    None: None,
    "dflash": {"method": "dflash", "num_speculative_tokens": 3},
    "mtp": {"method": "mtp", "num_speculative_tokens": 3},
    "dflash with all drafts": {"method": "dflash"},
    "ngram": {"method": "ngram", "prompt_lookup_min": 1},
    "dflash and lookup": {"method": "dflash", "adaptive_lookup": True},
}
FEW, MANY = 1024, 20_032  # texts; whole batches
Text = tuple[int, ...]


def engine(method: str | None) -> LLM:
    given = METHODS[method]
    llm = LLM(
        "tiny",
        max_model_len=64,
        max_num_seqs=ROWS,
        max_num_batched_tokens=64,
        speculative_config=None if given is None else {**given, "min_acceptance_length": 0},
    )
    use_buckets(llm, Buckets((64,), (ROWS,)))
    return llm


shared = cache(engine)


def texts(llm: LLM, count: int, first_seed: int) -> tuple[list[Text], float]:
    """New tokens of so many seeds, and tokens per round in the mean over batches."""
    end = llm.tokenizer.eos_ids[0]
    found, rounds = [], []
    for seed in range(first_seed, first_seed + count // ROWS):
        params = SamplingParams(
            temperature=1.0,
            top_p=0.9,
            top_k=20,
            logit_bias={end: END_BIAS},
            n=ROWS,
            seed=seed,
            max_tokens=LENGTH,
        )
        output = llm.generate([PROMPT], params)[0]
        found.extend(sample.token_ids for sample in output.outputs)
        rounds.append(output.metrics.acceptance_length)
    return found, float(np.mean(rounds))


@cache
def plain(count: int) -> list[Text]:
    return texts(shared(None), count, 0)[0]


def drafted(llm: LLM, count: int) -> list[Text]:
    found, per_round = texts(llm, count, 10**6)
    assert per_round > 1.1, "drafts are accepted"
    return found


def table(one: Sequence[Text], other: Sequence[Text]) -> np.ndarray:
    """Counts [2, cells] of the first tokens; rare ones share a cell."""
    counts = [Counter(text[:FIRST] for text in texts) for texts in (one, other)]
    every = counts[0] + counts[1]
    enough = 5 * (len(one) + len(other)) / min(len(one), len(other))
    common = [cell for cell, count in every.items() if count >= enough]
    columns = [[count[cell] for cell in common] for count in counts]
    rest = [len(texts) - sum(own) for texts, own in zip((one, other), columns, strict=True)]
    if sum(rest) >= enough:
        columns = [[*own, left] for own, left in zip(columns, rest, strict=True)]
    return np.array(columns)


def p_values(one: Sequence[Text], other: Sequence[Text]) -> dict[str, float]:
    cells = table(one, other)
    assert cells.shape[1] >= 12
    lengths = [[len(text) for text in texts] for texts in (one, other)]
    found = {
        f"first tokens, {cells.shape[1]} cells": float(stats.chi2_contingency(cells).pvalue),
        "length": float(stats.ks_2samp(*lengths).pvalue),
    }
    print(f"\n{len(one)} texts without drafts, {len(other)} with: {found}")
    return found


def assert_same_law(method: str, count: int) -> None:
    assert min(p_values(plain(count), drafted(shared(method), count)).values()) > 1e-4


def test_texts_end_at_many_lengths():
    ended = Counter(len(text) for text in plain(FEW))
    assert sum(ended[length] > FEW // 100 for length in range(1, LENGTH)) >= 4


@pytest.mark.parametrize("method", ["dflash", "mtp"])
def test_texts_with_drafts_have_the_law_of_texts_without(method):
    assert_same_law(method, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("method", [method for method in METHODS if method])
def test_twenty_thousand_texts_have_it(method):
    assert_same_law(method, MANY)


FAULTS = {
    "passes by p alone": lambda log_u, log_p, log_q: log_u < log_p,
    "passes whatever is possible": lambda log_u, log_p, log_q: log_p > -np.inf,
}


@pytest.mark.parametrize(
    "fault",
    ["passes by p alone", pytest.param("passes whatever is possible", marks=pytest.mark.slow)],
)
def test_a_wrong_ratio_is_refused(fault, monkeypatch):
    monkeypatch.setattr(acceptance, "_ratio_test", FAULTS[fault])
    found = drafted(engine("dflash"), FEW // 2)
    assert min(p_values(plain(FEW), found).values()) < 1e-6
