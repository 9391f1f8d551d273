"""The walk over a lattice against one that goes step by step, and its distribution against the probabilities it claims.

Random words come from `sampling.randomness`, which has tests of its own.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from onecat_jax import SamplingParams
from onecat_jax.sampling.randomness import STREAM_DRAFT, gumbel, token_words
from onecat_jax.sampling.state import request_row, stack_rows
from onecat_jax.speculation.selector import walk

STEPS, COUNT = 5, 6


def lattice(batch, seed=0, spread=2.0):
    """Scores [B, K, U, U] and ids [B, K, U]."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, spread, (batch, STEPS, COUNT, COUNT)).astype(np.float32)
    ids = np.stack([[rng.permutation(40)[:COUNT] for _ in range(STEPS)] for _ in range(batch)])
    return scores, ids.astype(np.int32)


def settings(temperatures, seeds=None):
    rows = [
        request_row(SamplingParams(temperature=t), (), seed=s, prompt_length=0)
        for t, s in zip(temperatures, seeds or range(len(temperatures)), strict=True)
    ]
    return stack_rows(rows)


def by_steps(scores, ids, position, temperature, seed):
    """Tokens and q [K, U] of one row, in float64."""
    tokens, q, before = [], [], 0
    for step in range(len(ids)):
        row = scores[step, before].astype(np.float64)
        if temperature == 0:
            before = min(range(COUNT), key=lambda i: (-row[i], ids[step, i]))
            q.append(np.eye(COUNT)[before])
        else:
            mass = np.exp((row - row.max()) / temperature)
            q.append(mass / mass.sum())
            words = token_words(
                jnp.asarray([[seed, 0]], jnp.uint32),
                jnp.asarray([position + 1 + step]),
                jnp.asarray(ids[step][None]),
                STREAM_DRAFT,
            )
            before = int(np.argmax(row / temperature + np.asarray(gumbel(words))[0]))
        tokens.append(ids[step, before])
    return tokens, np.asarray(q)


def test_the_walk_takes_the_steps():
    temperatures = [0.0, 0.3, 1.0, 1.7] * 8
    scores, ids = lattice(32)
    position = np.arange(32, dtype=np.int32) * 9
    wanted = jnp.full(32, 9, jnp.int32)
    drafts = jax.jit(walk)(scores, ids, position, wanted, settings(temperatures))
    for row, temperature in enumerate(temperatures):
        tokens, q = by_steps(scores[row], ids[row], position[row], temperature, row)
        assert drafts.tokens[row].tolist() == tokens
        assert np.allclose(np.exp(drafts.log_q[row]), q, atol=1e-6)
    assert drafts.count.tolist() == [STEPS] * 32
    assert np.array_equal(drafts.ids, ids)


def test_equal_scores_go_to_the_lowest_id():
    scores, ids = lattice(3)
    scores = np.round(scores)
    drafts = walk(scores, ids, jnp.zeros(3, jnp.int32), jnp.full(3, STEPS), settings([0.0] * 3))
    for row in range(3):
        assert drafts.tokens[row].tolist() == by_steps(scores[row], ids[row], 0, 0.0, 0)[0]


@pytest.mark.parametrize("temperature", [0.5, 1.3])
def test_chains_come_as_often_as_q_says(temperature):
    """20,000 seeds: the first token, and the third behind each second one."""
    count = 20_000
    scores, ids = (np.repeat(a, count, axis=0) for a in lattice(1, spread=1.0))
    rows = settings([temperature])
    seeds = np.stack([np.arange(count), np.full(count, 7)], axis=1).astype(np.uint32)
    rows = replace(
        jax.tree.map(lambda a: jnp.repeat(a, count, axis=0), rows), seed=jnp.asarray(seeds)
    )
    position, wanted = jnp.full(count, 30, jnp.int32), jnp.full(count, STEPS, jnp.int32)
    drafts = jax.jit(walk)(scores, ids, position, wanted, rows)
    place = np.argmax(np.asarray(drafts.ids) == np.asarray(drafts.tokens)[..., None], axis=-1)
    q = np.exp(np.asarray(drafts.log_q, np.float64))
    tests = [(place[:, 0], q[0, 0])]
    for before in range(COUNT):
        there = place[:, 1] == before
        tests.append((place[there, 2], q[there, 2][0]))
    for found, expected in tests:
        seen = np.bincount(found, minlength=COUNT)
        fair = expected / expected.sum() * len(found)
        keep = fair >= 5
        merged = [np.append(a[keep], a[~keep].sum()) for a in (seen, fair)]
        if merged[1][-1] == 0:
            merged = [a[:-1] for a in merged]
        assert chisquare(*merged).pvalue > 1e-4


def test_noise_belongs_to_the_token_whatever_its_place_among_the_candidates():
    scores, ids = lattice(1)
    order = np.random.default_rng(1).permutation(COUNT)
    shuffled = scores[..., order].copy()
    shuffled[:, 1:] = shuffled[:, 1:][:, :, order]
    where = jnp.asarray([4]), jnp.asarray([STEPS]), settings([0.9])
    first = scores[:, 0].copy()
    assert np.ptp(first, axis=1).max() > 0, "the first step must know where it starts"
    scores[:, 0] = first[:, :1]
    shuffled[:, 0] = first[:, :1][..., order]
    one, other = walk(scores, ids, *where), walk(shuffled, ids[..., order], *where)
    assert np.array_equal(one.tokens, other.tokens)


@pytest.mark.parametrize("temperature", [1e-30, 1e30])
def test_any_temperature_gives_a_distribution(temperature):
    scores, ids = lattice(2, spread=50.0)
    rows = settings([temperature] * 2)
    drafts = walk(scores, ids, jnp.zeros(2, jnp.int32), jnp.full(2, STEPS), rows)
    q = np.exp(np.asarray(drafts.log_q))
    assert np.allclose(q.sum(-1), 1, atol=1e-5)
    assert np.allclose(q.max(-1), 1 if temperature < 1 else 1 / COUNT, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_step_without_scores_ends_the_chain(bad, temperature):
    scores, ids = lattice(2)
    good = walk(
        scores, ids, jnp.zeros(2, jnp.int32), jnp.full(2, STEPS), settings([temperature] * 2)
    )
    scores[1, 3] = bad
    drafts = walk(
        scores, ids, jnp.zeros(2, jnp.int32), jnp.full(2, STEPS), settings([temperature] * 2)
    )
    assert drafts.count.tolist() == [STEPS, 3]
    assert np.array_equal(drafts.tokens[0], good.tokens[0])
    assert np.array_equal(drafts.tokens[1, :3], good.tokens[1, :3])
    assert np.array_equal(drafts.log_q[1, :3], good.log_q[1, :3])


def test_one_column_stands_for_every_candidate_before():
    scores, ids = lattice(2)
    column = scores[:, :, :1]
    whole = np.broadcast_to(column, scores.shape)
    where = jnp.zeros(2, jnp.int32), jnp.full(2, STEPS), settings([0.9, 0.0])
    one, other = walk(column, ids, *where), walk(whole, ids, *where)
    assert np.array_equal(one.tokens, other.tokens)
    assert np.array_equal(one.log_q, other.log_q)
