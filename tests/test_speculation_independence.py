"""With drafts too, what a request gets depends on the request alone, bit for bit: tokens, texts, log probabilities, and the
number of drafts that each round accepts.

Oracle: the same engine with that request and nothing else, memory as it was. Embedded model and draft, float32, CPU handlers;
every drafter. Requests are greedy or have all parameters drawn at random, and ask for different numbers of drafts. Not covered:
tensor parallelism (test_speculation_ranks), whether the tokens are right (test_speculation_exact, test_speculation_law).
"""

from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import strategies as st
from independence import (
    Case,
    Comparisons,
    any_params,
    for_all,
    poison,
    poison_before_every_launch,
    prompts,
    run,
    use_buckets,
)
from speculating import PROMPTS

from onecat_jax import LLM, RequestOutput, SamplingParams
from onecat_jax.buckets import Buckets

ROWS = 4
METHODS = {
    "dflash": {"method": "dflash"},
    "mtp": {"method": "mtp", "num_speculative_tokens": 3},
    "ngram": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2},
    "dflash and lookup": {"method": "dflash", "adaptive_lookup": True},
}
OFTEN = ("mtp", "dflash and lookup")  # the others are slow tests
NUMBERS = "x = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]\n" * 4
COPIES = (
    "one two three four five six seven eight nine ten\n" * 3,
    "self.left, self.right = left, right\n" * 5,
)
PERMUTATIONS = st.integers(0, 10**6).map(np.random.default_rng)


@cache
def engine(method: str) -> LLM:
    """One shape of each program; with MTP also launches of one row, which is what a request alone gets then."""
    llm = LLM(
        "tiny",
        max_model_len=256,
        max_num_seqs=ROWS,
        max_num_batched_tokens=64,
        gpu_memory_utilization=0.5,
        speculative_config=METHODS[method],
    )
    use_buckets(llm, Buckets((64,), (1, ROWS) if method == "mtp" else (ROWS,)))
    return llm


class Rounds(Comparisons):
    """Compares what the rounds accepted as well."""

    def __init__(self, llm: LLM) -> None:
        super().__init__(llm)
        self.counts |= {"rounds": 0, "accepted": 0}

    def equal(self, case: Case, found: RequestOutput) -> None:
        super().equal(case, found)
        accepted = found.metrics.accepted_per_round
        assert accepted == self.alone(case).metrics.accepted_per_round
        self.counts["rounds"] += len(accepted)
        self.counts["accepted"] += sum(accepted)


@pytest.fixture(params=[pytest.param(3, id="short"), pytest.param(50, marks=pytest.mark.slow)])
def examples(request) -> int:
    return request.param


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow) for name in METHODS
    ],
)
def llm(request):
    return engine(request.param)


@pytest.fixture(scope="module")
def alone(llm):
    return Rounds(llm)


@pytest.fixture
def laws(llm, alone, request):
    alone.counts = dict.fromkeys(alone.counts, 0)
    yield alone
    alone.report(request.node.name)
    assert alone.counts["accepted"] > 0
    pool = llm._engine.scheduler.pool
    assert sorted(pool.free_pages) == list(range(1, pool.pages))
    assert sorted(pool.free_slots) == list(range(1, pool.slots))


def texts() -> st.SearchStrategy[tuple[int, ...]]:
    """Prompts that the model was made for, some of them worth copying from."""
    encode = engine("ngram").tokenizer.encode
    return st.sampled_from([tuple(encode(text)) for text in (*COPIES, *PROMPTS)])


@st.composite
def any_settings(draw) -> SamplingParams:
    """Greedy or likely tokens, of which many drafts are accepted, or all parameters at random; then drafts at most."""
    most = draw(st.sampled_from([40, 23, 64, 7]))
    likely = st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.6, 1.0]),
        top_p=st.sampled_from([0.9, 1.0]),
        top_k=st.sampled_from([0, 20]),
        seed=st.integers(0, 2**64 - 1),
        max_tokens=st.just(most),
        ignore_eos=st.booleans(),
        stop=st.sampled_from([(), ("\n\n",), ("return",)]),
    )
    params = draw(st.one_of(likely, likely, any_params(most=most, samples=1)))
    drafts = draw(st.sampled_from([None, None, 2, 15, 1, 0]))
    extra = {} if drafts is None else {"extra_args": {"num_speculative_tokens": drafts}}
    return replace(params, logprobs=3, prompt_logprobs=None, **extra)


def any_case() -> st.SearchStrategy[Case]:
    strange = prompts((1, 2, 17, 64, 65, 100))
    return st.builds(Case, st.one_of(texts(), texts(), strange), any_settings())


def shuffle(llm: LLM, rng: np.random.Generator) -> None:
    """Other pages and slots for whoever comes next."""
    pool = llm._engine.scheduler.pool
    for free in (pool.free_pages, pool.free_slots):
        free[:] = [free[i] for i in rng.permutation(len(free))]


@contextmanager
def disturbed(llm: LLM, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch):
    """Inside, pages and slots come in another order, launches have random lengths, and free memory holds NaN before each."""
    shuffle(llm, rng)
    poison(llm)
    with monkeypatch.context() as patch, poison_before_every_launch(llm) as launches:
        patch.setattr(llm._engine, "_rounds", lambda *_: int(rng.integers(1, 7)))
        yield launches


def test_neighbours_places_launches_and_what_free_memory_holds_change_nothing(
    llm, laws, examples, monkeypatch
):
    """NaN in all target and draft memory that nobody owns, wrong tokens in the texts that lookup reads."""
    poisoned = []

    @for_all(
        examples, together=st.lists(any_case(), min_size=2, max_size=ROWS + 2), rng=PERMUTATIONS
    )
    def law(together, rng):
        for case in together:
            laws.alone(case)
        order = rng.permutation(len(together))
        with disturbed(llm, rng, monkeypatch) as launches:
            found = run(llm, [together[i] for i in order])
        poisoned.extend(launches)
        for place, output in zip(order, found, strict=True):
            laws.equal(together[place], output)

    law()
    assert {key[0] for key in poisoned} == {"prefill", "decode scored"}
    assert max(key[2] for key in poisoned if key[0] == "decode scored") > 1, "some had drafts"


@pytest.mark.parametrize("llm", ["dflash and lookup"], indirect=True)
def test_long_rounds_of_one_change_nothing_for_the_others(llm, laws, examples, monkeypatch):
    """A request that copies a text in rounds of 15 drafts, among others that don't, or do with fewer drafts."""
    prompt = tuple(llm.tokenizer.encode(NUMBERS))
    greedy = SamplingParams(temperature=0.0, max_tokens=80, ignore_eos=True, logprobs=3)
    copying = Case(prompt, greedy)
    assert max(laws.alone(copying).metrics.accepted_per_round) == 15

    @for_all(examples, others=st.lists(any_case(), min_size=1, max_size=ROWS), rng=PERMUTATIONS)
    def law(others, rng):
        together = [copying, *others]
        for case in others:
            laws.alone(case)
        with disturbed(llm, rng, monkeypatch) as launches:
            found = run(llm, together)
        assert {key[2] for key in launches if key[0] == "decode scored"} >= {8, 16}
        for case, output in zip(together, found, strict=True):
            laws.equal(case, output)

    law()


def test_the_lengths_of_launches_and_when_others_arrive_change_nothing(
    llm, laws, examples, monkeypatch
):
    @for_all(
        examples,
        first=any_case(),
        together=st.lists(any_case(), min_size=1, max_size=2),
        rng=PERMUTATIONS,
    )
    def law(first, together, rng):
        wanted = laws.alone(first).outputs[0].token_ids
        for case in together:
            laws.alone(case)
        with monkeypatch.context() as patch:
            patch.setattr(llm._engine, "_rounds", lambda *_: int(rng.integers(1, 7)))
            sample = llm._job(llm._prompt(first.ids), first.params).samples[0]
            llm._engine.add(sample.request)
            for _ in range(rng.integers(1, 4)):
                llm._engine.step(streaming=False)
            found = run(llm, together)
            while llm._engine.scheduler.busy:
                llm._engine.step(streaming=False)
        assert tuple(sample.request.tokens)[: len(wanted)] == wanted
        for case, output in zip(together, found, strict=True):
            laws.equal(case, output)

    law()


def test_a_stream_adds_up_to_the_result_of_generate(llm, laws, examples):
    @for_all(examples, case=any_case())
    def law(case):
        deltas = list(llm.stream(case.ids, case.params))
        whole = deltas[-1].output
        laws.equal(case, whole)
        assert "".join(delta.text for delta in deltas) == whole.outputs[0].text
        assert sum((delta.token_ids for delta in deltas), ()) == whole.outputs[0].token_ids
        assert sum((delta.logprobs for delta in deltas), ()) == whole.outputs[0].logprobs

    law()


def test_samples_of_one_prompt_get_what_each_gets_alone(llm, laws, examples):
    """They start from a copy of what the first one's prefill left, the drafter's part included."""

    @for_all(examples, case=any_case())
    def law(case):
        several = replace(case, params=replace(case.params, n=3))
        found = run(llm, [several])[0]
        for index, params in enumerate(several.params.samples()):
            wanted = laws.alone(replace(case, params=params))
            assert replace(found.outputs[index], index=0) == wanted.outputs[0]
        laws.equal(
            replace(case, params=several.params.samples()[0]),
            replace(found, outputs=found.outputs[:1]),
        )

    law()
