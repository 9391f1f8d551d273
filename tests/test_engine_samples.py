"""Samples of one prompt share its prefill and its pages, and get what each would get alone; nothing leaks, whoever leaves when.

Oracle: single requests with the seeds of the samples on the same engine (tokens, texts and log probabilities, bit for bit); for
the page pool, counting the tables of what runs. Embedded model, float32, default route. Not covered: other devices and
tensor parallelism (the copies are per rank and per layer alike), whose figures follow the gap rule.
"""

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_engine import tiny

from onecat_jax import LLM, SamplingParams
from onecat_jax.request import Request
from onecat_jax.sampling import request_row
from onecat_jax.sampling_params import derived_seed
from onecat_jax.scheduler import PagePool, Scheduler

SAMPLED = SamplingParams(temperature=1.0, seed=11, max_tokens=5, ignore_eos=True, logprobs=2)
LENGTHS = (1, 2, 16, 17, 18, 32, 33, 64, 65, 100)  # around the borders of pages and chunks


@cache
def engine(page_size: int) -> LLM:
    if page_size == 16:
        return tiny()
    return LLM(
        "tiny",
        max_model_len=512,
        max_num_seqs=4,
        max_num_batched_tokens=128,
        block_size=page_size,
    )


def prompt_of(length: int) -> dict[str, list[int]]:
    return {"prompt_token_ids": np.random.default_rng(length).integers(0, 8000, length).tolist()}


@pytest.fixture(autouse=True)
def nothing_stays_behind():
    yield
    for llm in (engine(16), engine(32)):
        scheduler, pool = llm._engine.scheduler, llm._engine.scheduler.pool
        assert not scheduler.busy
        assert sorted(pool.free_pages) == list(range(1, pool.pages))
        assert sorted(pool.free_slots) == list(range(1, pool.slots))
        assert not any(pool.users)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("page_size", [16, 32])
def test_samples_get_what_single_requests_with_their_seeds_get(page_size, length):
    llm, prompt = engine(page_size), prompt_of(length)
    seeds = [derived_seed(11, i) for i in range(5)]  # more than rows: one of them waits
    before = llm.stats()["prefilled_tokens"]
    single = llm.generate([prompt] * 5, [replace(SAMPLED, seed=s) for s in seeds])
    assert llm.stats()["prefilled_tokens"] - before == 5 * (length - 1), "each for itself"
    together = llm.generate(prompt, replace(SAMPLED, n=5))[0].outputs
    assert [replace(sample, index=0) for sample in together] == [o.outputs[0] for o in single]
    assert [sample.index for sample in together] == list(range(5))
    assert len({sample.token_ids for sample in together}) > 1


@pytest.mark.parametrize("length", [1, 2, 33, 140])
def test_samples_with_penalties_count_the_prompt_and_their_own_tokens(length):
    llm = engine(16)
    penalties = {"repetition_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 0.5}
    params = replace(SAMPLED, max_tokens=9, logit_bias={220: 4.0, 9: 4.0}, **penalties)
    single = [
        llm.generate(prompt_of(length), replace(params, seed=derived_seed(11, i)))[0].outputs[0]
        for i in range(3)
    ]
    together = llm.generate(prompt_of(length), replace(params, n=3))[0].outputs
    assert [replace(sample, index=0) for sample in together] == single
    plain = replace(SAMPLED, max_tokens=9, logit_bias={220: 4.0, 9: 4.0}, n=3)
    assert [o.token_ids for o in llm.generate(prompt_of(length), plain)[0].outputs] != [
        sample.token_ids for sample in together
    ], "the penalties matter here"


@pytest.mark.parametrize("length", [1, 17, 100, 300])
def test_samples_that_start_together_prefill_their_prompt_once(length):
    llm = engine(16)
    for n, waves in ((1, 1), (4, 1), (5, 2)):
        before = llm.stats()["prefilled_tokens"]
        output = llm.generate(prompt_of(length), replace(SAMPLED, n=n))[0]
        assert llm.stats()["prefilled_tokens"] - before == waves * (length - 1)
        assert output.metrics.cached_prompt_tokens == 0  # of the first sample, which prefills


def test_two_prompts_with_samples_mixed_with_single_requests():
    llm = engine(16)
    prompts = [prompt_of(n) for n in (40, 7, 100)]
    params = [replace(SAMPLED, n=n, max_tokens=m) for n, m in ((3, 4), (1, 9), (3, 7))]
    alone = [llm.generate(p, s)[0].outputs for p, s in zip(prompts, params, strict=True)]
    assert [o.outputs for o in llm.generate(prompts, params)] == alone


def test_equal_prompts_of_two_requests_are_not_mixed_up():
    llm = engine(16)
    one, two = SAMPLED, replace(SAMPLED, seed=5, n=2)
    alone = [llm.generate(prompt_of(50), s)[0].outputs for s in (one, two)]
    assert [o.outputs for o in llm.generate([prompt_of(50)] * 2, [one, two])] == alone


def test_the_logprobs_of_the_prompt_are_the_same_for_any_number_of_samples():
    llm, params = engine(16), replace(SAMPLED, prompt_logprobs=1)
    one = llm.generate(prompt_of(100), params)[0]
    many = llm.generate(prompt_of(100), replace(params, n=3))[0]
    assert many.prompt_logprobs == one.prompt_logprobs
    assert many.outputs[0] == one.outputs[0]
    assert many.outputs[1:] == llm.generate(prompt_of(100), replace(SAMPLED, n=3))[0].outputs[1:]


def test_samples_of_different_lengths_end_one_by_one():
    llm = engine(16)
    free = llm.generate(prompt_of(33), replace(SAMPLED, n=4, max_tokens=20))[0].outputs
    stop = [sample.token_ids[4 * i] for i, sample in enumerate(free)]
    params = replace(SAMPLED, max_tokens=20, stop_token_ids=stop)
    alone = [
        llm.generate(prompt_of(33), replace(params, seed=derived_seed(11, i)))[0].outputs[0]
        for i in range(4)
    ]
    together = llm.generate(prompt_of(33), replace(params, n=4))[0].outputs
    assert [replace(sample, index=0) for sample in together] == alone
    assert len({len(sample.token_ids) for sample in together}) > 1


def test_a_small_cache_holds_more_samples_than_single_requests(monkeypatch):
    llm, length = engine(16), 97  # six pages for all but the last token, and one page each
    scheduler = llm._engine.scheduler
    wanted = llm.generate(prompt_of(length), replace(SAMPLED, n=4))[0].outputs
    small = PagePool(1 + 6 + 4, scheduler.pool.slots, 16)
    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "pool", small)
        before = llm.stats()["prefilled_tokens"]
        assert llm.generate(prompt_of(length), replace(SAMPLED, n=4))[0].outputs == wanted
        assert llm.stats()["prefilled_tokens"] - before == length - 1
        small.free_pages.pop()  # room for three: the fourth waits
        assert llm.generate(prompt_of(length), replace(SAMPLED, n=4))[0].outputs == wanted
        assert llm.stats()["prefilled_tokens"] - before == 3 * (length - 1)


@pytest.mark.parametrize("leaver", range(4))
def test_any_sample_may_leave_at_any_launch_and_the_others_go_on(leaver):
    llm = engine(16)
    params = replace(SAMPLED, n=4, max_tokens=12, logprobs=None)
    prompt = prompt_of(70)
    wanted = [sample.token_ids for sample in llm.generate(prompt, params)[0].outputs]
    for launches in range(3):
        job = llm._job(llm._prompt(prompt), params)
        requests = [sample.request for sample in job.samples]
        for request in requests:
            llm._engine.add(request)
        for _ in range(launches):
            llm._engine.step(streaming=True)
        llm._engine.abort(requests[leaver])
        late = llm._job(llm._prompt(prompt), replace(params, n=2)).samples
        for sample in late:  # takes what became free
            llm._engine.add(sample.request)
        while llm._engine.scheduler.busy:
            llm._engine.step(streaming=False)
        stayed = [i for i in range(4) if i != leaver]
        assert [tuple(requests[i].tokens) for i in stayed] == [wanted[i] for i in stayed]
        assert [tuple(sample.request.tokens) for sample in late] == wanted[:2]


def test_a_leader_that_leaves_between_its_prefill_and_the_fork_still_leads(monkeypatch):
    """Garbage collection can close a stream at any moment of a step."""
    llm = engine(16)
    params = replace(SAMPLED, n=3, logprobs=None)
    wanted = [sample.token_ids for sample in llm.generate(prompt_of(70), params)[0].outputs]
    inner = llm._engine
    requests = [sample.request for sample in llm._job(llm._prompt(prompt_of(70)), params).samples]
    for request in requests:
        inner.add(request)
    real = inner._run

    def run(key, *args):
        result = real(key, *args)
        if key[0] == "prefill":
            inner.abort(requests[0])
            assert requests[0].pages, "what it owns stays until the step has ended"
        return result

    with monkeypatch.context() as patch:
        patch.setattr(inner, "_run", run)
        inner.step(streaming=True)
    assert requests[0] not in inner.scheduler.running
    assert not requests[0].pages
    while inner.scheduler.busy:
        inner.step(streaming=False)
    assert [tuple(request.tokens) for request in requests[1:]] == wanted[1:]


# The page pool


class Churn:
    """A scheduler without a device, and jobs of several samples that come and go."""

    def __init__(self, pages: int, rows: int, page_size: int) -> None:
        self.pool = PagePool(pages, rows + 1, page_size)
        self.scheduler = Scheduler(self.pool, rows, (pages - 1) * page_size)
        self.requests: list[Request] = []

    def add(self, length: int, new: int, n: int) -> None:
        prompt = (1,) * length
        params = SamplingParams(temperature=0.0)
        row = request_row(params, (), seed=0, prompt_length=length)
        longest = min(length + new, self.scheduler.max_model_len)
        for i in range(n):
            request = Request(str(i), prompt, params, row, longest)
            self.scheduler.add(request)
            self.requests.append(request)

    def leave(self, which: int) -> None:
        if self.requests:
            self.scheduler.finish(self.requests.pop(which % len(self.requests)))

    def check(self) -> None:
        """Users are the tables that hold a page; a page that will be written has one; nothing is lost or free twice."""
        pool, running = self.pool, self.scheduler.running
        held = list(itertools.chain(*(request.pages for request in running)))
        assert pool.users == [held.count(page) for page in range(pool.pages)]
        assert sorted([*pool.free_pages, *set(held)]) == list(range(1, pool.pages))
        slots = [request.slot for request in running]
        assert sorted([*pool.free_slots, *slots]) == list(range(1, pool.slots))
        for request in running:
            assert len(request.pages) == pool.pages_for(request.longest)
            written = request.pages[(len(request.prompt) - 1) // pool.page_size :]
            assert all(pool.users[page] == 1 for page in written)


JOBS = st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(1, 6))


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(
    st.integers(5, 30),
    st.integers(1, 5),
    st.sampled_from([4, 8]),
    st.lists(st.one_of(JOBS, st.integers(0, 50), st.none()), max_size=40),
)
def test_pages_and_slots_are_counted_right_whoever_comes_and_goes(pages, rows, page_size, events):
    churn = Churn(pages, rows, page_size)
    for event in events:
        if event is None:
            for admission in churn.scheduler.admit():
                if admission.leader is not None:
                    full = (len(admission.request.prompt) - 1) // page_size
                    assert admission.request.pages[:full] == admission.leader.pages[:full]
        elif isinstance(event, int):
            churn.leave(event)
        elif event[0] < churn.scheduler.max_model_len:
            churn.add(*event)
        churn.check()
    while churn.requests:
        churn.leave(0)
        churn.check()
    assert len(churn.pool.free_pages) == pages - 1
    assert not any(churn.pool.users)


def test_what_a_leader_cannot_give_is_not_taken_from_it():
    plain = SamplingParams(temperature=0.0)
    prompt = (1, 2, 3)

    def request(ids: tuple[int, ...], params: SamplingParams) -> Request:
        row = request_row(params, (), seed=0, prompt_length=len(ids))
        return Request("", ids, params, row, 10)

    leader = request(prompt, plain)
    assert request(prompt, plain).continues(leader)
    assert not request((1, 2, 4)[:2] + (3,), plain).continues(leader)  # equal, another object
    assert not request(prompt, replace(plain, prompt_logprobs=0)).continues(leader)
    single = (1,)
    assert not request(single, plain).continues(request(single, plain))  # nothing to take
