"""Requests with every parameter drawn at random, what they get alone, and poison for all memory that nobody owns."""

import json
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from onecat_jax import LLM, RequestOutput, SamplingParams
from onecat_jax.buckets import Buckets
from onecat_jax.operands import Operands
from onecat_jax.scheduler import PagePool
from onecat_jax.state import CacheState, DraftState, GDNCache, PagedKV, TokenHistory

ROWS = 8


@cache
def engine() -> LLM:
    """Decode programs of one row and of eight, chunks of up to 128 tokens: few programs, so that little is compiled."""
    llm = LLM(
        "tiny",
        max_model_len=576,
        max_num_seqs=ROWS,
        max_num_batched_tokens=512,
        gpu_memory_utilization=0.5,
    )
    use_buckets(llm, Buckets((64, 128), (1, ROWS)))
    return llm


def use_buckets(llm: LLM, buckets: Buckets) -> None:
    """Other program shapes for the same engine. Programs that were compiled stay."""
    inner = llm._engine
    inner.buckets = buckets
    inner.operands = Operands(buckets, inner.scheduler.pool.page_size, inner.table_width)


@contextmanager
def buckets_of(llm: LLM, buckets: Buckets):
    before = llm._engine.buckets
    use_buckets(llm, buckets)
    try:
        yield
    finally:
        use_buckets(llm, before)


# Random requests


@dataclass(frozen=True)
class Case:
    """A request."""

    prompt: tuple[int, ...]
    params: SamplingParams

    @property
    def ids(self) -> dict[str, list[int]]:
        return {"prompt_token_ids": list(self.prompt)}


LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 66, 100, 128, 129, 130, 200, 300)


def prompts(lengths: Sequence[int] = LENGTHS) -> st.SearchStrategy[tuple[int, ...]]:
    def ids(draw: tuple[int, int]) -> tuple[int, ...]:
        length, seed = draw
        return tuple(np.random.default_rng(seed).integers(0, 8000, length).tolist())

    return st.tuples(st.sampled_from(lengths), st.integers(0, 999)).map(ids)


BIASES = st.dictionaries(
    st.integers(0, 8000), st.sampled_from([-100.0, -1.5, 3.0, 9.0]), max_size=9
)
STOPS = st.lists(st.sampled_from(["e", "\n", " ", "th", "self", "1", "):"]), max_size=2)


@st.composite
def any_params(draw: Callable, most: int = 12, samples: int = 3) -> SamplingParams:
    """All fields of SamplingParams together. First in each list is what the first cases take: much randomness, all reported."""
    tokens = draw(st.sampled_from([most, most - 1, 1]))
    return SamplingParams(
        temperature=draw(st.sampled_from([1.0, 0.8, 1.4, 0.3, 0.0])),
        top_k=draw(st.sampled_from([0, 40, 10**6, 2, 1])),
        top_p=draw(st.sampled_from([1.0, 0.95, 0.6, 1e-6])),
        min_p=draw(st.sampled_from([0.0, 0.02, 0.3, 1.0])),
        seed=draw(st.integers(0, 2**64 - 1)),
        max_tokens=tokens,
        min_tokens=draw(st.integers(0, tokens)),
        stop=draw(STOPS),
        stop_token_ids=draw(st.lists(st.integers(0, 300), max_size=5)),
        ignore_eos=draw(st.booleans()),
        n=draw(st.sampled_from([1, 1, samples])),
        logprobs=draw(st.sampled_from([2, 20, 0, None])),
        prompt_logprobs=draw(st.sampled_from([None, None, 0, 3])),
        presence_penalty=draw(st.sampled_from([0.7, 0.0, -2.0])),
        frequency_penalty=draw(st.sampled_from([0.4, 0.0, 2.0])),
        repetition_penalty=draw(st.sampled_from([1.2, 1.0, 0.8])),
        logit_bias=draw(BIASES),
        include_stop_str_in_output=draw(st.booleans()),
    )


def cases(lengths: Sequence[int] = LENGTHS, **params: Any) -> st.SearchStrategy[Case]:
    return st.builds(Case, prompts(lengths), any_params(**params))


def reported(case: Case) -> Case:
    """The same request with everything reported that comes from the logits."""
    return replace(case, params=replace(case.params, logprobs=3))


def for_all(examples: int, **drawn: st.SearchStrategy) -> Callable[[Callable], Callable]:
    """A law over the same random cases in every run."""
    chosen = settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # a smaller failing case isn't worth minutes
        suppress_health_check=list(HealthCheck),
    )
    return lambda law: chosen(given(**drawn)(law))


# What requests get


def run(llm: LLM, together: Sequence[Case]) -> list[RequestOutput]:
    return llm.generate([case.ids for case in together], [case.params for case in together])


class Comparisons:
    """Requests alone, remembered, and how much was compared with them."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._alone: dict[tuple, RequestOutput] = {}
        self.counts = dict.fromkeys(("requests", "samples", "tokens", "floats"), 0)

    def alone(self, case: Case) -> RequestOutput:
        """What a request gets when nothing else runs."""
        key = (case.prompt, *(getattr(case.params, f.name) for f in fields(case.params)))
        if key not in self._alone:
            self._alone[key] = run(self._llm, [case])[0]
        return self._alone[key]

    def equal(self, case: Case, found: RequestOutput) -> None:
        """Tokens, texts, every reported float and the reasons of the end, bit for bit."""
        wanted = self.alone(case)
        assert found.prompt_logprobs == wanted.prompt_logprobs
        assert found.outputs == wanted.outputs
        self._count(found)

    def _count(self, output: RequestOutput) -> None:
        tables = [table for table in output.prompt_logprobs or () if table is not None]
        for sample in output.outputs:
            tables.extend(sample.logprobs or ())
        self.counts["requests"] += 1
        self.counts["samples"] += len(output.outputs)
        self.counts["tokens"] += sum(len(sample.token_ids) for sample in output.outputs)
        self.counts["floats"] += sum(len(table) for table in tables)

    def report(self, law: str) -> None:
        print(f"\n{law}: compared {json.dumps(self.counts)}")
        assert self.counts["tokens"] > 0


# Poison


@partial(jax.jit, donate_argnums=0)
def _poisoned(state: CacheState, pages: Any, slots: Any) -> CacheState:
    """NaN in the pages [X] and slots [slots] that are marked, of every layer; in their histories, tokens seen at random."""

    def put(flat: Any, marked: Any, value: Any) -> Any:
        mask = jnp.tile(marked, flat.shape[0] // marked.shape[0])
        return jnp.where(mask.reshape(-1, *[1] * (flat.ndim - 1)), value, flat)

    kv, gdn, nan, counts = state.kv, state.gdn, jnp.nan, state.history.counts
    seen = jax.lax.broadcasted_iota(jnp.int32, counts.shape, 1) * 7919 % 13
    return CacheState(
        PagedKV(put(kv.k, pages, nan), put(kv.v, pages, nan), kv.pages),
        GDNCache(put(gdn.state, slots, nan), put(gdn.window, slots, nan), gdn.slots),
        TokenHistory(put(counts, slots, seen)),
        _poisoned_drafts(state.draft, slots, put),
    )


def _poisoned_drafts(draft: DraftState, slots: Any, put: Any) -> DraftState:
    if draft.window is not None:
        kv, rings = draft.window.kv, jnp.repeat(slots, draft.window.ring)
        k, v = (put(flat, rings, jnp.nan) for flat in (kv.k, kv.v))
        draft = draft.with_window(replace(kv, k=k, v=v))
    hidden = None if draft.hidden is None else put(draft.hidden, slots, jnp.nan)
    tokens = None if draft.tokens is None else put(draft.tokens, slots, 7919)
    return replace(draft, hidden=hidden, tokens=tokens)


def poison(llm: LLM) -> None:
    """Overwrites every page and slot that is free now, and the padding (page 0, slot 0)."""
    pool: PagePool = llm._engine.scheduler.pool
    pages, slots = np.zeros(pool.pages, bool), np.zeros(pool.slots, bool)
    pages[[0, *pool.free_pages]], slots[[0, *pool.free_slots]] = True, True
    llm._engine.state = _poisoned(llm._engine.state, pages, slots)


@contextmanager
def poison_before_every_launch(llm: LLM):
    """Inside, whatever is free holds poison before each program runs."""
    inner = llm._engine
    real, launches = inner._run, []

    def run_poisoned(*args: Any) -> Any:
        poison(llm)
        launches.append(args[0])
        return real(*args)

    inner._run = run_poisoned
    try:
        yield launches
    finally:
        del inner._run
