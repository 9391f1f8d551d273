"""Sampled texts with drafts have the distribution of texts without: the first three tokens together, and the length.

Oracle: the same engine without a drafter, with other seeds (with the same seeds the two samples wouldn't be independent). A
two-sample chi-square over cells that hold five each in expectation; Kolmogorov-Smirnov for the lengths, where a bias makes the
end-of-sequence token likely. The same statistics must refuse a fault planted in the acceptance. Rounds one by one against exact
laws are the matter of test_acceptance_law.
"""

import importlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle

import numpy as np
import pytest
from independence import buckets_of, use_buckets
from scipy import stats
from speculating import PROMPTS

from onecat_jax import LLM, SamplingParams
from onecat_jax.buckets import Buckets

acceptance = importlib.import_module("onecat_jax.sampling.acceptance")

ROWS, LENGTH, FIRST = 64, 6, 3
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


@dataclass(frozen=True)
class Law:
    """What texts are drawn from."""

    prompt: str
    temperature: float


OPEN = Law(PROMPTS[0], 1.0)
COPYING = Law(PROMPTS[5], 1.6)  # there is text to look up, and doubt whether to go on copying
LAW_OF = {"ngram": COPYING, "dflash and lookup": COPYING}  # methods that aren't here: OPEN
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


def sampled(llm: LLM, law: Law, seed: int, n: int = 1) -> SamplingParams:
    return SamplingParams(
        temperature=law.temperature,
        top_p=0.9,
        top_k=20,
        logit_bias={llm.tokenizer.eos_ids[0]: END_BIAS},
        n=n,
        seed=seed,
        max_tokens=LENGTH,
    )


def texts(llm: LLM, law: Law, count: int, first_seed: int) -> tuple[list[Text], float]:
    """New tokens of so many seeds, and tokens per round in the mean over batches."""
    found, rounds = [], []
    for seed in range(first_seed, first_seed + count // ROWS):
        output = llm.generate([law.prompt], sampled(llm, law, seed, ROWS))[0]
        found.extend(sample.token_ids for sample in output.outputs)
        rounds.append(output.metrics.acceptance_length)
    return found, float(np.mean(rounds))


SIZES = (1, 3, 8, 2, 20, 5, 29)  # requests that count, beside two that don't
NEIGHBOURS = {
    PROMPTS[1]: SamplingParams(temperature=0.0, max_tokens=LENGTH - 2),
    PROMPTS[2]: SamplingParams(
        temperature=0.7, max_tokens=LENGTH + 2, extra_args={"num_speculative_tokens": 0}
    ),
}


def texts_of_mixed_batches(llm: LLM, count: int, first_seed: int) -> list[Text]:
    """The same, in batches of many sizes, beside a greedy request and one without drafts, each in turn first."""
    found, sizes = [], cycle(SIZES)
    with buckets_of(llm, Buckets((64,), (4, 8, 32))):
        while len(found) < count:
            size = min(next(sizes), count - len(found))
            seeds = range(first_seed + len(found), first_seed + len(found) + size)
            batch = [(OPEN.prompt, sampled(llm, OPEN, seed)) for seed in seeds]
            batch[:0] = [*NEIGHBOURS.items()][: size % 3]
            batch.extend([*NEIGHBOURS.items()][size % 3 :])
            outputs = llm.generate(*map(list, zip(*batch, strict=True)))
            found.extend(o.outputs[0].token_ids for o in outputs if o.prompt == OPEN.prompt)
    return found


@cache
def plain(count: int, law: Law = OPEN) -> list[Text]:
    return texts(shared(None), law, count, 0)[0]


def drafted(llm: LLM, count: int, law: Law = OPEN) -> list[Text]:
    found, per_round = texts(llm, law, count, 10**6)
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
    law = LAW_OF.get(method, OPEN)
    found = p_values(plain(count, law), drafted(shared(method), count, law))
    assert min(found.values()) > 1e-4


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


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dflash", "mtp"])
def test_twenty_thousand_texts_of_batches_of_mixed_sizes_have_it(method):
    found = texts_of_mixed_batches(shared(method), MANY, 2 * 10**6)
    assert len(found) == MANY
    assert min(p_values(plain(MANY), found).values()) > 1e-4


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
