"""What a request gets depends on the request alone, bit for bit: tokens, texts and every reported log probability.

Oracle: the same engine with that request and nothing else, memory as it was. Log probabilities come from the logits, so equal
floats mean equal logits. Requests have all parameters drawn at random. Embedded model, float32, default route (CPU handlers),
where equality is bitwise. Not covered: tensor parallelism (test_independence_ranks), plain JAX routes, whose one-row programs
round differently, and half precision.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st
from independence import (
    ROWS,
    Comparisons,
    buckets_of,
    cases,
    engine,
    for_all,
    poison,
    poison_before_every_launch,
    reported,
    run,
)

from onecat_jax.buckets import Buckets

PERMUTATIONS = st.integers(0, 10**6).map(np.random.default_rng)


@pytest.fixture(params=[pytest.param(5, id="short"), pytest.param(60, marks=pytest.mark.slow)])
def examples(request) -> int:
    return request.param


@pytest.fixture(scope="module")
def llm():
    return engine()


@pytest.fixture
def laws(llm, request):
    comparisons = Comparisons(llm)
    yield comparisons
    comparisons.report(request.node.name)
    pool = llm._engine.scheduler.pool
    assert sorted(pool.free_pages) == list(range(1, pool.pages))
    assert sorted(pool.free_slots) == list(range(1, pool.slots))


def shuffle(llm, rng: np.random.Generator) -> None:
    """Other pages and slots for whoever comes next."""
    pool = llm._engine.scheduler.pool
    for free in (pool.free_pages, pool.free_slots):
        free[:] = [free[i] for i in rng.permutation(len(free))]


def test_neighbours_change_nothing(llm, laws, examples):
    @for_all(examples, target=cases(), neighbours=st.lists(cases(), min_size=1, max_size=ROWS - 1))
    def law(target, neighbours):
        laws.equal(reported(target), run(llm, [reported(target), *neighbours])[0])

    law()


def test_the_place_among_others_changes_nothing(llm, laws, examples):
    """Order of arrival, and with it the rows of the batch."""

    @for_all(examples, together=st.lists(cases(), min_size=2, max_size=ROWS), rng=PERMUTATIONS)
    def law(together, rng):
        order = rng.permutation(len(together))
        found = run(llm, [together[i] for i in order])
        for place, output in zip(order, found, strict=True):
            laws.equal(together[place], output)

    law()


def test_arriving_while_others_run_changes_nothing(llm, laws, examples):
    @for_all(examples, first=cases(most=20), target=cases(), launches=st.integers(1, 3))
    def law(first, target, launches):
        wanted = laws.alone(first)
        samples = llm._job(llm._prompt(first.ids), first.params).samples
        for sample in samples:
            llm._engine.add(sample.request)
        for _ in range(launches):
            llm._engine.step(streaming=True)
        laws.equal(reported(target), run(llm, [reported(target)])[0])
        while llm._engine.scheduler.busy:
            llm._engine.step(streaming=False)
        for sample, alone in zip(samples, wanted.outputs, strict=True):
            assert tuple(sample.request.tokens)[: len(alone.token_ids)] == alone.token_ids

    law()


def test_pages_slots_and_what_free_memory_holds_change_nothing(llm, laws, examples):
    poisoned = []

    @for_all(examples, together=st.lists(cases(), min_size=1, max_size=4), rng=PERMUTATIONS)
    def law(together, rng):
        for case in together:
            laws.alone(reported(case))
        shuffle(llm, rng)
        poison(llm)
        with poison_before_every_launch(llm) as launches:
            found = run(llm, [reported(case) for case in together])
        poisoned.extend(launches)
        for case, output in zip(together, found, strict=True):
            laws.equal(reported(case), output)

    law()
    assert {key[0] for key in poisoned} > {"prefill", "decode scored"}
    print(f"\nfree memory was poisoned before {len(poisoned)} launches")


@pytest.mark.parametrize("chunk", [64, 256, 512])
def test_the_chunk_budget_changes_nothing(llm, laws, examples, chunk):
    """Against chunks of 128 tokens."""
    lengths = (130, 65, 66, 2, 128, 200, 257, 300, 500, 520)

    @for_all(examples, target=cases(lengths, most=6))
    def law(target):
        laws.alone(reported(target))
        with buckets_of(llm, Buckets((chunk,), (1, ROWS))):
            found = run(llm, [reported(target)])[0]
        laws.equal(reported(target), found)

    law()


def test_the_lengths_of_launches_change_nothing(llm, laws, examples, monkeypatch):
    @for_all(examples, together=st.lists(cases(most=20), min_size=1, max_size=3), rng=PERMUTATIONS)
    def law(together, rng):
        for case in together:
            laws.alone(case)
        with monkeypatch.context() as patch:
            patch.setattr(llm._engine, "_rounds", lambda *_: int(rng.integers(1, 7)))
            found = run(llm, together)
        for case, output in zip(together, found, strict=True):
            laws.equal(case, output)

    law()


def test_eight_requests_with_all_parameters_mixed_get_what_each_gets_alone(llm, laws, examples):
    one_row_each = st.lists(cases(samples=1), min_size=8, max_size=8)  # all eight in one batch

    @for_all(examples, together=one_row_each)
    def law(together):
        for case, output in zip(together, run(llm, together), strict=True):
            laws.equal(case, output)

    law()


def test_a_stream_adds_up_to_the_result_of_generate(llm, laws, examples):
    @for_all(examples, case=cases(samples=1, most=20))
    def law(case):
        laws.alone(case)
        deltas = list(llm.stream(case.ids, case.params))
        whole = deltas[-1].output
        laws.equal(case, whole)
        assert "".join(delta.text for delta in deltas) == whole.outputs[0].text
        assert sum((delta.token_ids for delta in deltas), ()) == whole.outputs[0].token_ids
        scores = [delta.logprobs for delta in deltas]
        if case.params.logprobs is None:
            assert set(scores) == {None}
        else:
            assert sum(scores, ()) == whole.outputs[0].logprobs

    law()


def test_the_draws_of_a_seed_are_the_same_alone_in_any_batch_and_in_any_slot(llm, laws, examples):
    everything = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}  # may be drawn

    @for_all(examples, drawn=cases(samples=1), rng=PERMUTATIONS)
    def law(drawn, rng):
        target = replace(drawn, params=replace(drawn.params, **everything))
        laws.alone(target)
        shuffle(llm, rng)
        for output in run(llm, [target] * ROWS):
            laws.equal(target, output)

    law()
