"""Acceptance over a vocabulary that is split over 2 and 4 ranks.

Oracle: the same function on one rank, which other tests hold against float64; every rank's own result is looked at. Logits are
multiples of 1/8 with many ties. A ratio within rounding of its random number could fall to either side of it, since ranks add
their masses up one by one; no case here is that close. Four fake CPU devices.
"""

import math
import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from onecat_jax.sampling import (
    Accepted,
    Drafts,
    SamplingState,
    SlotCounts,
    accept,
    request_row,
    stack_rows,
)
from onecat_jax.sampling_params import SamplingParams
from onecat_jax.sharding import TP, WHOLE, Placement, Shards

ROWS, WIDTH, SIZE, SLOTS, CANDIDATES = 16, 4, 256, 20, 6
DROPPED = 30  # ids at the end that don't exist


def program(shards: Shards):
    def run(x, drafts, state, position, banned, allowed, history) -> Accepted:
        fed = jnp.concatenate([position[:, None], drafts.tokens], axis=1)
        return accept(
            x, drafts, state, position, fed=fed, vocab_size=x.shape[2] * shards.size - DROPPED,
            banned=banned, allowed=allowed, history=history, shards=shards,
        )  # fmt: skip

    return run


def split_program(ranks: int):
    """One program over all ranks whose results keep each rank's own along the first axis."""
    placement = Placement.of(ranks)
    run = program(placement.shards)
    rows = P(None, None, TP)
    return placement.shard_map(
        lambda *args: jax.tree.map(lambda leaf: leaf[None], run(*args)),
        (rows, P(), P(), P(), P(TP), rows, SlotCounts(P(None, TP), P())),
        P(TP),
    )


@cache
def compiled(ranks: int):
    return jax.jit(split_program(ranks) if ranks > 1 else program(WHOLE))


def settings(rng: np.random.Generator) -> SamplingParams:
    return SamplingParams(
        temperature=float(rng.choice([0.0, 0.5, 1.0, 2.0])),
        top_k=int(rng.choice([0, 1, 7, 64, SIZE // 2])),
        top_p=float(rng.choice([1.0, 0.95, 0.6])),
        min_p=float(rng.choice([0.0, 0.0, 0.06])),
        presence_penalty=float(rng.choice([0.0, 0.0, 1.25])),
        frequency_penalty=float(rng.choice([0.0, 0.0, -0.5])),
        repetition_penalty=float(rng.choice([1.0, 1.0, 2.0])),
        logit_bias={int(i): float(rng.integers(-2, 2)) for i in rng.choice(SIZE, 4, replace=False)},
        min_tokens=int(rng.choice([0, 3])),
        stop_token_ids=[int(i) for i in rng.integers(0, SIZE, 9)],
    )


def arguments(seed: int, params: list[SamplingParams] | None = None) -> tuple:
    rng = np.random.default_rng(seed)
    params = params or [settings(rng) for _ in range(ROWS)]
    state = stack_rows(
        [request_row(p, (), seed=31 * i + seed, prompt_length=4) for i, p in enumerate(params)]
    )
    x = np.round(rng.normal(size=(ROWS, WIDTH, SIZE)) * 8) / 8
    shape = (ROWS * (WIDTH - 1), 1)
    ids = rng.permuted(np.tile(np.arange(SIZE - DROPPED), shape), axis=1)[:, :CANDIDATES]
    ids = ids.reshape(ROWS, WIDTH - 1, CANDIDATES).astype(np.int32)
    np.put_along_axis(x[:, :-1], ids, np.round(rng.normal(size=ids.shape) * 8) / 8 + 5, axis=2)
    guess = np.take_along_axis(x[:, :-1], ids, axis=2)
    pick = (guess + rng.gumbel(size=guess.shape)).argmax(axis=2)[..., None]
    drafts = Drafts(
        tokens=jnp.asarray(np.take_along_axis(ids, pick, axis=2)[..., 0]),
        ids=jnp.asarray(ids),
        log_q=jax.nn.log_softmax(jnp.asarray(guess, jnp.float32), axis=-1),
        count=jnp.asarray(rng.choice([0, 1, WIDTH - 1, WIDTH - 1], ROWS), jnp.int32),
    )
    return (
        jnp.asarray(x, jnp.float32),
        drafts,
        state,
        jnp.asarray(rng.integers(3, 9, ROWS), jnp.int32),
        jnp.asarray(rng.random(SIZE) < 0.03),
        jnp.asarray(rng.random((ROWS, WIDTH, SIZE)) < rng.choice([0.9, 1.1], (ROWS, 1, 1))),
        SlotCounts(
            jnp.asarray(rng.integers(0, 5, (SLOTS, SIZE)), jnp.int32),
            jnp.asarray(rng.permutation(SLOTS)[:ROWS], jnp.int32),
        ),
    )


def compare(ranks: int, args: tuple) -> Accepted:
    """All ranks must agree to the bit with each other, and with one rank."""
    alone = jax.tree.map(np.asarray, compiled(1)(*args))
    each = jax.tree.map(np.asarray, compiled(ranks)(*args))
    for split, want in zip(jax.tree.leaves(each), jax.tree.leaves(alone), strict=True):
        for rank in range(ranks):
            np.testing.assert_array_equal(split[rank], want)
    return alone


@pytest.mark.parametrize("ranks", [2, 4])
def test_requests_of_all_kinds_get_the_decisions_of_one_rank(ranks):
    counts = np.concatenate([compare(ranks, arguments(seed)).count for seed in range(12)])
    assert np.bincount(counts, minlength=WIDTH).min() > 5


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
        {"temperature": 2.0, "top_p": 0.97},
        {"temperature": 1.0, "top_k": 100},
    ],
    ids=str,
)
def test_every_route_of_a_uniform_batch_gives_the_decisions_of_one_rank(ranks, settings):
    for seed in range(3):
        compare(ranks, arguments(seed, [SamplingParams(**settings)] * ROWS))


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_bad_number_in_one_slice_ends_the_chain_on_all_ranks(ranks):
    x, *rest = arguments(1)
    for row, place, column, value in [(0, 0, 3, np.nan), (1, 1, 200, np.inf), (2, 0, 130, np.nan)]:
        x = x.at[row, place, column].set(value)
    got = compare(ranks, (x, *rest))
    assert not got.healthy[0]
    assert not got.healthy[2]
    assert got.healthy[3:].all()


def test_ranks_exchange_a_few_numbers_a_row_and_whole_rows_only_to_search_them():
    text = jax.jit(split_program(4)).lower(*arguments(0)).as_text()
    assert "all_reduce" not in text  # those are counted per layer of the model
    shapes = re.findall(r'stablehlo\.all_gather"?.*-> tensor<([\dx]+)x[a-z]+\d+>', text)
    counts = sorted(math.prod(int(d) for d in shape.split("x")) for shape in shapes)
    assert len(counts) >= 8
    assert counts.count(ROWS * WIDTH * SIZE) == 1
    others = [n for n in counts if n != ROWS * WIDTH * SIZE]
    assert others[-1] == 4 * 2 * ROWS * WIDTH * 64  # values and ids of each rank's head


def test_the_states_of_this_file_ask_for_everything():
    state: SamplingState = arguments(0)[2]
    assert bool(state.penalised.any())
    assert bool(state.biased.any())
    assert bool((state.temperature == 0).any())
