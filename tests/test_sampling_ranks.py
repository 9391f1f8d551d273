"""Sampling over a vocabulary that is split over 2 and 4 ranks.

Oracle: the same functions on one rank, which other tests hold against float64; every rank's own result is looked at. Logits are
multiples of 1/8 with many ties, so that nothing depends on the rounding of a sum. Four fake CPU devices. Not covered: a rank
that takes another branch than its neighbours would hang rather than fail.
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
    SamplingState,
    SlotCounts,
    healthy_rows,
    request_row,
    sample,
    stack_rows,
    token_logprobs,
)
from onecat_jax.sampling.transforms import target_logits
from onecat_jax.sampling.vocabulary import Vocabulary
from onecat_jax.sampling_params import SamplingParams
from onecat_jax.sharding import TP, WHOLE, Placement, Shards

ROWS, SIZE, SLOTS, TOP = 24, 512, 30, 5
SMALL = 96  # a rank's slice of it is smaller than the head of 64 tokens
CASES = [(2, SIZE), (4, SIZE), (4, SMALL)]


def program(shards: Shards):
    def run(x, state, positions, banned, history, vocab_size):
        tokens = sample(
            x, state, positions, vocab_size=vocab_size, banned=banned, history=history, shards=shards
        )  # fmt: skip
        return {
            "tokens": tokens,
            "healthy": healthy_rows(x, vocab_size=vocab_size, shards=shards),
            "scores": token_logprobs(x, tokens, TOP, vocab_size=vocab_size, shards=shards),
        }

    return run


def split_program(ranks: int):
    """One program over all ranks whose results keep each rank's own along the first axis."""
    placement = Placement.of(ranks)
    run = program(placement.shards)
    columns = P(None, TP)
    return placement.shard_map(
        lambda *args: jax.tree.map(lambda leaf: leaf[None], run(*args)),
        (columns, P(), P(), P(TP), SlotCounts(columns, P()), P()),
        P(TP),
    )


@cache
def compiled(ranks: int):
    return jax.jit(split_program(ranks) if ranks > 1 else program(WHOLE))


def compare(
    ranks: int, x, state: SamplingState, *, size=None, banned=None, history=None, positions=None
):
    """Runs both; all ranks must agree to the bit with each other, and with one rank. Returns one rank's results."""
    width = x.shape[1]
    args = (
        jnp.asarray(x, jnp.float32),
        state,
        jnp.arange(len(x), dtype=jnp.int32) if positions is None else positions,
        jnp.zeros(width, bool) if banned is None else banned,
        history or SlotCounts(jnp.zeros((SLOTS, width), jnp.int32), jnp.ones(len(x), jnp.int32)),
        jnp.int32(width if size is None else size),
    )
    alone = jax.tree.map(np.asarray, compiled(1)(*args))
    each = jax.tree.map(np.asarray, compiled(ranks)(*args))
    for leaf in jax.tree.leaves(each):
        for rank in range(1, ranks):
            np.testing.assert_array_equal(leaf[rank], leaf[0])
    np.testing.assert_array_equal(each["tokens"][0], alone["tokens"])
    np.testing.assert_array_equal(each["healthy"][0], alone["healthy"])
    chosen, ids, values, rank = (leaf[0] for leaf in each["scores"])
    np.testing.assert_allclose(chosen, alone["scores"][0], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(ids, alone["scores"][1])
    np.testing.assert_allclose(values, alone["scores"][2], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(rank, alone["scores"][3])
    return alone


def state_of(*params: SamplingParams, prompt_length: int = 4) -> SamplingState:
    return stack_rows(
        [request_row(p, (), seed=31 * i, prompt_length=prompt_length) for i, p in enumerate(params)]
    )


def same(**settings) -> SamplingState:
    return state_of(*[SamplingParams(**settings)] * ROWS)


def rounded(rng: np.random.Generator, size: int, scale: float = 2.0) -> np.ndarray:
    return np.round(rng.normal(size=(ROWS, size)) * scale * 8) / 8


def random_params(rng: np.random.Generator, size: int) -> SamplingParams:
    return SamplingParams(
        temperature=float(rng.choice([0.0, 0.5, 1.0, 50.0])),
        top_k=int(rng.choice([0, 1, 7, 64, size // 2])),
        top_p=float(rng.choice([1.0, 0.95, 0.6, 1e-6])),
        min_p=float(rng.choice([0.0, 0.0, 0.06])),
        presence_penalty=float(rng.choice([0.0, 0.0, 1.25])),
        frequency_penalty=float(rng.choice([0.0, 0.0, -0.5])),
        repetition_penalty=float(rng.choice([1.0, 1.0, 2.0])),
        logit_bias={int(i): float(rng.integers(-9, 9)) for i in rng.choice(size, 4, replace=False)},
        min_tokens=int(rng.choice([0, 9])),
        stop_token_ids=[int(i) for i in rng.integers(0, size, 9)],
    )


@pytest.mark.parametrize(("ranks", "size"), CASES)
def test_requests_of_all_kinds_get_the_tokens_of_one_rank(ranks, size):
    rng = np.random.default_rng(ranks * size)
    for _ in range(5):
        x = rounded(rng, size)
        compare(
            ranks,
            x,
            state_of(*[random_params(rng, size) for _ in range(ROWS)]),
            size=size - int(rng.integers(0, size // 2)),  # may leave ranks without a real id
            banned=jnp.asarray(rng.random(size) < 0.05),
            history=SlotCounts(
                jnp.asarray(rng.integers(0, 5, (SLOTS, size)), jnp.int32),
                jnp.asarray(rng.permutation(SLOTS)[:ROWS], jnp.int32),
            ),
            positions=jnp.asarray(rng.integers(4, 20, ROWS), jnp.int32),
        )


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 20},
        {"temperature": 0.7, "top_p": 0.5},
        {"temperature": 1.0, "top_k": 100},
        {"temperature": 1.0, "min_p": 0.1},
    ],
    ids=str,
)
@pytest.mark.parametrize(("ranks", "size"), CASES)
def test_every_route_of_a_uniform_batch_gives_the_tokens_of_one_rank(ranks, size, settings):
    x = rounded(np.random.default_rng(size), size)
    tokens = compare(ranks, x, same(**settings))["tokens"]
    assert len(set(tokens.tolist())) > 5


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_greedy_tie_across_a_border_goes_to_the_lowest_id(ranks):
    x = np.zeros((ROWS, SIZE))
    pairs = [(127, 128), (255, 256), (383, 384), (0, 511), (300, 20), (128, 255)]
    for row, (first, second) in enumerate(pairs * (ROWS // len(pairs))):
        x[row, [first, second]] = 3
    tokens = compare(ranks, x, same(temperature=0.0))["tokens"]
    assert tokens.tolist() == [min(pair) for pair in pairs] * (ROWS // len(pairs))


@pytest.mark.parametrize("ranks", [2, 4])
def test_ties_at_the_cut_of_top_k_across_a_border_keep_the_lowest_ids(ranks):
    x = np.zeros((ROWS, SIZE))
    x[:, 250:262] = 2
    x[:, [9, 500]] = 2.5
    state = same(temperature=1.0, top_k=10)
    kept = {9, 500, *range(250, 258)}
    seen = set()
    for start in range(0, 400, 50):
        positions = jnp.arange(start, start + ROWS, dtype=jnp.int32)
        seen |= set(compare(ranks, x, state, positions=positions)["tokens"].tolist())
    assert seen == kept


@pytest.mark.parametrize("ranks", [2, 4])
def test_rows_that_their_heads_do_not_settle_are_searched_over_all_ranks(ranks):
    x = rounded(np.random.default_rng(3), SIZE, scale=0.2)
    settings = {"temperature": 1.0, "top_p": 0.9}
    tokens = compare(ranks, x, same(**settings))["tokens"]
    assert len(set(tokens.tolist())) > 15
    compare(ranks, np.zeros((ROWS, SIZE)), same(**settings))


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_bias_or_a_penalty_reaches_the_slice_that_holds_the_token(ranks):
    winners = [int(i) for i in np.linspace(0, SIZE - 1, ROWS)]
    state = state_of(*[SamplingParams(temperature=0, logit_bias={i: 5}) for i in winners])
    assert compare(ranks, np.zeros((ROWS, SIZE)), state)["tokens"].tolist() == winners

    x, counts = np.zeros((ROWS, SIZE)), np.zeros((SLOTS, SIZE), np.int32)
    for row, token in enumerate(winners):
        x[row, token], counts[row, token] = 5, 2
        x[row, (token + 130) % SIZE] = 4
    history = SlotCounts(jnp.asarray(counts), jnp.arange(ROWS, dtype=jnp.int32))
    state = same(temperature=0, presence_penalty=2)
    tokens = compare(ranks, x, state, history=history)["tokens"]
    assert tokens.tolist() == [(i + 130) % SIZE for i in winners]


@pytest.mark.parametrize("ranks", [2, 4])
def test_stop_ids_of_every_slice_wait_for_min_tokens(ranks):
    stops = [5, 130, 260, 390, 511]
    x = np.zeros((ROWS, SIZE))
    x[:, stops] = 4
    x[:, 300] = 1
    state = same(temperature=0, min_tokens=6, stop_token_ids=stops)
    tokens = compare(ranks, x, state)["tokens"]  # positions 0, 1, ...; the prompt has 4 tokens
    assert tokens.tolist() == [300] * 10 + [5] * (ROWS - 10)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_bad_number_in_one_slice_fails_its_row_on_all_ranks(ranks):
    x = rounded(np.random.default_rng(4), SIZE)
    x[1, 3], x[2, 200], x[3, 510], x[4, 400], x[5] = np.nan, np.inf, np.nan, np.nan, -np.inf
    x[6, :384] = -np.inf
    got = compare(ranks, x, same(temperature=1.0, top_k=9), size=500)
    assert got["healthy"].tolist() == [i not in (1, 2, 4, 5) for i in range(ROWS)]


@pytest.mark.parametrize("size", [1, 100, 128, 129, 500])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_vocabulary_that_ends_inside_a_slice_ends_there(ranks, size):
    x = np.broadcast_to(np.arange(SIZE) / 8.0, (ROWS, SIZE))
    tokens = compare(ranks, x, same(temperature=0.0), size=size)["tokens"]
    assert set(tokens.tolist()) == {size - 1}
    drawn = compare(ranks, x, same(temperature=1e5, top_p=0.99), size=size)["tokens"]
    assert drawn.max() < size


def test_the_target_distribution_of_slices_is_that_of_the_whole():
    rng = np.random.default_rng(9)
    placement = Placement.of(4)
    x = jnp.asarray(rounded(rng, SIZE), jnp.float32)
    settings = (
        jnp.asarray(rng.choice([0.5, 1.0], ROWS), jnp.float32),
        jnp.asarray(rng.choice([0.0, 0.02], ROWS), jnp.float32),
        jnp.asarray(rng.choice([0, 5, 90], ROWS), jnp.int32),
        jnp.asarray(rng.choice([0.7, 1.0], ROWS), jnp.float32),
    )
    split = placement.shard_map(
        lambda *args: target_logits(*args, Vocabulary(placement.shards)),
        (P(None, TP), P(), P(), P(), P()),
        P(None, TP),
    )
    want = np.asarray(jax.jit(target_logits)(x, *settings))
    np.testing.assert_array_equal(jax.jit(split)(x, *settings), want)
    assert 0.5 < np.isinf(want).mean() < 1


def lowered(ranks: int, size: int) -> str:
    run = split_program(ranks) if ranks > 1 else program(WHOLE)
    args = (
        jnp.zeros((ROWS, size)),
        same(),
        jnp.zeros(ROWS, jnp.int32),
        jnp.zeros(size, bool),
        SlotCounts(jnp.zeros((SLOTS, size), jnp.int32), jnp.zeros(ROWS, jnp.int32)),
        jnp.int32(size),
    )
    return jax.jit(run).lower(*args).as_text()


def test_one_rank_exchanges_nothing():
    text = lowered(1, SIZE)
    assert "all_gather" not in text
    assert "all_reduce" not in text


def test_ranks_exchange_a_few_numbers_a_row_and_whole_rows_only_to_search_them():
    size = 100_000
    text = lowered(4, size)
    assert "all_reduce" not in text  # those are counted per layer of the model
    shapes = re.findall(r'stablehlo\.all_gather"?.*-> tensor<([\dx]+)x[a-z]+\d+>', text)
    counts = sorted(math.prod(int(d) for d in shape.split("x")) for shape in shapes)
    assert len(counts) >= 8
    assert counts[-1] == ROWS * size
    assert counts[-2] == 4 * 2 * ROWS * 64  # values and ids of each rank's head
