"""Inside a caller's own jit: one trace per shape, weights and seeds that change between calls, no copy of a cache.

Oracle: a Python counter in the traced function and jit's own cache; the function without jit; a fresh load of the other
checkpoint; the optimised HLO. Random dense model of two layers.
"""

import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoints import SMALL, Style, stored_tensors
from functional_cases import padded, random_prompts, small_checkpoint
from test_hlo import results

from onecat_jax import SamplingParams, functional

ROWS, WIDTH, NEW = 2, 40, 6
HOT, MIXED = np.array([1.0, 1.0], np.float32), np.array([0.7, 0.0], np.float32)
_COPY = re.compile(r"= \w+\[([\d,]+)\]\S* copy(?:-start)?\(")
_FREE = SamplingParams(temperature=1.0, ignore_eos=True)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return functional.load(small_checkpoint(tmp_path_factory.mktemp("first")))


@pytest.fixture(scope="module")
def other_weights():
    """What a trainer has: another checkpoint of the same model."""
    return stored_tensors(SMALL, Style(naming="dense"), seed=1)


@pytest.fixture(scope="module")
def batch():
    return padded(random_prompts((33, 7), below=SMALL.vocab_size), WIDTH)


class Twice:
    """A caller's function with two rollouts in it, and how often it was traced."""

    def __init__(self, model):
        self.model, self.traces = model, 0
        self.run = jax.jit(self._run)

    def _run(self, params, tokens, lengths, key, temperature):
        self.traces += 1
        rows = tokens.shape[0]
        outs = []
        for one in jax.random.split(key):
            sampling = functional.sampling(
                self.model, rows, _FREE, seed=one, temperature=temperature
            )
            outs.append(
                functional.generate(
                    self.model, params, tokens, lengths, sampling, max_new_tokens=NEW
                )
            )
        return outs


@pytest.fixture(scope="module")
def twice(loaded):
    return Twice(loaded[0])


def test_a_function_with_two_rollouts_is_traced_once_per_shape(loaded, other_weights, twice, batch):
    model, params = loaded
    tokens, lengths = batch
    for seed, temperature in ((0, HOT), (1, MIXED), (2, HOT)):
        twice.run(params, tokens, lengths, jax.random.key(seed), temperature)
    twice.run(params, tokens, lengths[::-1], jax.random.key(0), HOT)
    weights = functional.build_params(model, other_weights)
    twice.run(weights, tokens, lengths, jax.random.key(0), HOT)
    assert (twice.traces, twice.run._cache_size()) == (1, 1)
    twice.run(params, tokens[:1], lengths[:1], jax.random.key(0), HOT[:1])
    assert (twice.traces, twice.run._cache_size()) == (2, 2)


def test_traced_settings_give_what_the_same_numbers_give_outside(loaded, twice, batch):
    model, params = loaded
    key = jax.random.key(5)
    found = twice.run(params, *batch, key, MIXED)
    for out, one in zip(found, jax.random.split(key), strict=True):
        sampling = functional.sampling(model, ROWS, _FREE, seed=one, temperature=[0.7, 0.0])
        alone = functional.generate(model, params, *batch, sampling, max_new_tokens=NEW)
        jax.tree.map(np.testing.assert_array_equal, out, alone)
    assert not np.array_equal(found[0].tokens[0], found[1].tokens[0])
    np.testing.assert_array_equal(found[0].tokens[1], found[1].tokens[1])  # greedy


def test_new_weights_give_what_a_load_of_their_checkpoint_gives(
    loaded, other_weights, twice, batch, tmp_path
):
    model, params = loaded
    again, expected = functional.load(small_checkpoint(tmp_path, seed=1))
    found = functional.build_params(model, {n: jnp.asarray(x) for n, x in other_weights.items()})
    assert again == model
    assert hash(again) == hash(model)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    key = jax.random.key(0)
    before, after = (twice.run(p, *batch, key, HOT)[0].tokens for p in (params, found))
    assert not np.array_equal(before, after)


def test_a_replaced_leaf_takes_effect_without_a_trace(loaded, twice, batch):
    _, params = loaded
    key = jax.random.key(0)
    first = twice.run(params, *batch, key, HOT)[0]
    size = twice.run._cache_size()
    changed = twice.run(replace(params, norm=params.norm + 1.0), *batch, key, HOT)[0]
    assert twice.run._cache_size() == size
    assert not np.array_equal(first.logprobs, changed.logprobs)


def test_a_loop_of_jax_may_sweep_over_seeds(loaded, batch):
    model, params = loaded

    @jax.jit
    def sweep(params, seeds):
        def one(seed):
            sampling = functional.sampling(model, ROWS, _FREE, seed=seed)
            return functional.generate(model, params, *batch, sampling, max_new_tokens=NEW).tokens

        return jax.lax.map(one, seeds)

    seeds = np.arange(6, dtype=np.uint32).reshape(3, ROWS)
    found = sweep(params, seeds)
    for row, own in zip(found, seeds, strict=True):
        sampling = functional.sampling(model, ROWS, _FREE, seed=own)
        alone = functional.generate(model, params, *batch, sampling, max_new_tokens=NEW)
        np.testing.assert_array_equal(row, alone.tokens)


def test_no_rollout_copies_a_cache(loaded, batch):
    model, params = loaded
    sampling = functional.sampling(model, ROWS, _FREE, seed=[1, 2])
    run = partial(functional.generate, model, max_new_tokens=NEW)
    hlo = jax.jit(run).lower(params, *batch, sampling).compile().as_text()
    caches = functional.new_state(model, ROWS, WIDTH + NEW).caches
    shapes = {leaf.shape for leaf in jax.tree.leaves(caches)}
    of_caches = [r for r in results(hlo) if r[1] in shapes]
    assert {shape for _, shape, _ in of_caches} == shapes, "the text is read as it is written"
    copies = [line for line in hlo.splitlines() if _COPY.search(line)]
    copied = [c for c in copies if tuple(map(int, _COPY.search(c)[1].split(","))) in shapes]
    # Keys and values start as the same zeros: filled once, copied once, where two fills would do as well.
    assert all("copy(%wrapped_broadcast)" in line for line in copied), copied
    assert len(copied) <= 1


def test_a_donated_state_is_continued_in_place(loaded, batch):
    model, params = loaded
    sampling = functional.sampling(model, ROWS, _FREE, seed=[1, 2])

    @partial(jax.jit, donate_argnums=1)
    def turn(params, state, tokens, lengths):
        state = functional.prefill(model, params, state, tokens, lengths, sampling)
        return functional.decode(model, params, state, sampling, max_new_tokens=NEW)

    state = functional.new_state(model, ROWS, 2 * (WIDTH + NEW))
    caches = state.caches
    held = caches.kv.k.unsafe_buffer_pointer(), caches.gdn.state.unsafe_buffer_pointer()
    after, out = turn(params, state, *batch)
    assert caches.kv.k.is_deleted()
    kept = after.caches
    assert held == (kept.kv.k.unsafe_buffer_pointer(), kept.gdn.state.unsafe_buffer_pointer())
    alone = functional.generate(model, params, *batch, sampling, max_new_tokens=NEW)
    jax.tree.map(np.testing.assert_array_equal, out, alone)
    turn(params, after, *batch)
    assert turn._cache_size() == 1, "a new state and a used one are the same to a program"


def test_in_plain_jax_one_row_alone_is_one_of_two(batch, tmp_path):
    # One-row products round differently there, so a batch of one is padded.
    model, params = functional.load(small_checkpoint(tmp_path), backend="plain")
    tokens, lengths = batch
    seeds = [5, 6]
    both, alone = (
        functional.generate(
            model,
            params,
            tokens[:rows],
            lengths[:rows],
            functional.sampling(model, rows, _FREE, seed=seeds[:rows]),
            max_new_tokens=NEW,
        )
        for rows in (2, 1)
    )
    for name in ("tokens", "lengths", "logprobs", "status"):
        np.testing.assert_array_equal(getattr(alone, name)[0], getattr(both, name)[0])
