"""The number of tensor-parallel ranks changes no token, by the gap rule; on the same ranks a batch changes no bit.

Oracle: one rank. Sums over ranks round differently, so tokens may part where the two likeliest are closer than 1e-4 nats: such
exceptions are allowed for greedy requests without penalties and biases alone, counted, printed, and compared up to there. Two
and four fake CPU devices, embedded model, float32. Not covered: real links between devices, other dtypes.
"""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import strategies as st
from independence import Case, Comparisons, cases, for_all, reported, run, use_buckets

from onecat_jax import LLM, SamplingParams
from onecat_jax.buckets import Buckets
from onecat_jax.outputs import CompletionOutput, Logprob

GAP = 1e-4  # nats
LENGTHS = (2, 1, 16, 17, 65, 100, 130)
ROWS = 4


@cache
def engine(ranks: int) -> LLM:
    llm = LLM(
        "tiny",
        tensor_parallel_size=ranks,
        max_model_len=256,
        max_num_seqs=ROWS,
        max_num_batched_tokens=128,
    )
    use_buckets(llm, Buckets((128,), (ROWS,)))  # few programs
    return llm


@pytest.fixture(params=[pytest.param(6, id="short"), pytest.param(60, marks=pytest.mark.slow)])
def examples(request) -> int:
    return request.param


def greedy(case: Case) -> Case:
    """Nothing but the logits decides."""
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, logprobs=3)
    return Case(case.prompt, params)


def is_tie(params: SamplingParams, one: CompletionOutput, at: int) -> bool:
    """Whether the gap rule lets another token come at this place."""
    neutral = greedy(Case((), params)).params
    if params != replace(neutral, max_tokens=params.max_tokens):
        return False
    best, second = sorted((entry.logprob for entry in one.logprobs[at].values()), reverse=True)[:2]
    return best - second < GAP


class GapRule:
    """Compares samples of two degrees and counts."""

    def __init__(self) -> None:
        self.tokens = self.ties = 0
        self.largest = 0.0  # difference of log probabilities, nats

    def check(self, case: Case, one: CompletionOutput, other: CompletionOutput) -> None:
        pairs = zip(one.token_ids, other.token_ids, strict=False)
        parting = next((at for at, (a, b) in enumerate(pairs) if a != b), None)
        self._compare_scores(one, other, parting)
        if parting is None:
            assert other.token_ids == one.token_ids
            assert (other.text, other.finish_reason, other.stop_reason) == (
                one.text,
                one.finish_reason,
                one.stop_reason,
            )
        else:
            assert is_tie(case.params, one, parting), (case, parting)
            self.ties += 1

    def _compare_scores(
        self, one: CompletionOutput, other: CompletionOutput, parting: int | None
    ) -> None:
        tables = list(zip(one.logprobs, other.logprobs, strict=False))[:parting]
        for token, (a, b) in zip(one.token_ids, tables, strict=False):
            self.largest = max(self.largest, abs(a[token].logprob - b[token].logprob))
        self.tokens += len(tables)
        assert self.largest < GAP


@pytest.mark.parametrize("ranks", [2, 4])
def test_tokens_are_those_of_one_rank(ranks, examples):
    """Greedy requests and requests with all parameters at random, mixed in a batch, samples of one prompt among them."""
    rule = GapRule()
    mixed = st.lists(
        st.one_of(cases(LENGTHS).map(reported), cases(LENGTHS).map(greedy)), min_size=3, max_size=6
    )

    @for_all(examples, together=mixed)
    def law(together):
        wanted, found = run(engine(1), together), run(engine(ranks), together)
        for case, one, other in zip(together, wanted, found, strict=True):
            for sample, its in zip(one.outputs, other.outputs, strict=True):
                rule.check(case, sample, its)

    law()
    print(
        f"\n{ranks} ranks: {rule.tokens} tokens compared, {rule.ties} exceptions by ties below {GAP} nats, "
        f"log probabilities differ by up to {rule.largest:.1e}"
    )
    assert rule.tokens > 20 * examples


@pytest.mark.parametrize("ranks", [2, 4])
def test_on_the_same_ranks_neighbours_change_no_bit(ranks, examples):
    laws = Comparisons(engine(ranks))

    @for_all(examples, together=st.lists(cases(LENGTHS), min_size=2, max_size=ROWS))
    def law(together):
        shown = [reported(case) for case in together]
        for case, output in zip(shown, run(engine(ranks), shown), strict=True):
            laws.equal(case, output)

    law()
    laws.report(f"{ranks} ranks")


@pytest.mark.parametrize(("gap", "allowed"), [(0.5 * GAP, True), (2 * GAP, False)])
def test_the_gap_rule_lets_ties_pass_and_nothing_else(gap, allowed):
    def output(tokens: tuple[int, ...]) -> CompletionOutput:
        tables = tuple({t: Logprob(-1.0), 7: Logprob(-1.0 - gap)} for t in tokens)
        return CompletionOutput(0, "", tokens, logprobs=tables, finish_reason="length")

    case, one, other = greedy(Case((1,), SamplingParams())), output((5, 5, 5)), output((5, 7, 9))
    rule = GapRule()
    if allowed:
        rule.check(case, one, other)
        assert (rule.ties, rule.tokens) == (1, 1)
    else:
        with pytest.raises(AssertionError):
            rule.check(case, one, other)
    sampled = Case((1,), SamplingParams(temperature=1.0))
    with pytest.raises(AssertionError):
        GapRule().check(sampled, one, other)
