"""Acceptance row by row: agreement with a replay in float64, with `sample` and with itself in other batches, and its edges.

Oracle: `sampling_oracle` and a plain walk down each chain with the same random words; rows within rounding of a decision are
left out and counted. Not covered: laws (test_acceptance_law), ranks (test_acceptance_ranks).
"""

from dataclasses import dataclass, fields, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sampling_oracle as oracle
from jax.extend.core import jaxprs_in_params
from scipy import stats

from onecat_jax.sampling import (
    STREAM_ACCEPT,
    STREAM_TARGET,
    Accepted,
    Drafts,
    SamplingState,
    SlotCounts,
    accept,
    point_masses,
    request_row,
    sample,
    stack_rows,
)
from onecat_jax.sampling.counts import RoundCounts
from onecat_jax.sampling.randomness import gumbel_noise, token_words, uniform
from onecat_jax.sampling_params import SamplingParams
from onecat_jax.state import FedTokens, TokenHistory, record

# One shape for nearly everything: a program takes seconds to compile.
BATCH, WIDTH, SIZE, CANDIDATES = 40, 4, 300, 6
REAL = 293  # ids from here on are padding
run, draw = jax.jit(accept), jax.jit(sample)


@dataclass(frozen=True)
class Rounds:
    """Rounds of B requests, all arguments of `accept`."""

    logits: np.ndarray  # [B, Q, V] float32
    drafts: Drafts
    params: list[SamplingParams]
    sampling: SamplingState
    position: np.ndarray  # [B]
    prompt_length: np.ndarray  # [B]
    bonus: np.ndarray  # [B]
    banned: np.ndarray  # [V] bool
    allowed: np.ndarray  # [B, Q, V] bool
    counts: np.ndarray  # [B, V], of each request

    real: int = REAL

    @property
    def fed(self) -> np.ndarray:
        return np.concatenate([self.bonus[:, None], self.drafts.tokens], axis=1)


def settings(rng: np.random.Generator, real: int) -> SamplingParams:
    biased = rng.choice(real, int(rng.choice([0, 0, 3])), replace=False)
    return SamplingParams(
        temperature=float(np.float32(rng.choice([0.0, 1e-30, 0.7, 1.0, 1.9]))),
        top_k=int(rng.choice([0, 0, 1, 20, 64, 100])),
        top_p=float(np.float32(rng.choice([1.0, 1.0, 0.95, 0.5]))),
        min_p=float(np.float32(rng.choice([0.0, 0.0, 0.05]))),
        presence_penalty=float(rng.choice([0.0, 0.0, 1.25])),
        frequency_penalty=float(rng.choice([0.0, 0.0, 0.75])),
        repetition_penalty=float(np.float32(rng.choice([1.0, 1.0, 1.7]))),
        logit_bias={int(i): float(np.float32(rng.normal() * 3)) for i in biased},
        min_tokens=int(rng.choice([0, 3])),
        stop_token_ids=[int(i) for i in rng.integers(0, real, 3)],
    )


def rounds_of(seed: int, real: int = REAL) -> Rounds:
    """Random rounds in which many drafts are accepted: the target's favourites are the candidates."""
    rng = np.random.default_rng(seed)
    batch, width, size, candidates = BATCH, WIDTH, SIZE, CANDIDATES
    params = [settings(rng, real) for _ in range(batch)]
    position = rng.integers(0, 9, batch).astype(np.int32)
    prompt_length = np.where(rng.random(batch) < 0.3, position + 1, np.minimum(position, 4))
    logits = (rng.normal(size=(batch, width, size)) * 2).astype(np.float32)
    ids = rng.permuted(np.tile(np.arange(real), (batch * (width - 1), 1)), axis=1)
    ids = ids[:, :candidates].reshape(batch, width - 1, candidates).astype(np.int32)
    np.put_along_axis(logits[:, :-1], ids, rng.normal(size=ids.shape) + 8, axis=2)
    guess = np.take_along_axis(logits[:, :-1], ids, axis=2) * 0.7
    log_q = guess - np.log(np.exp(guess).sum(axis=2, keepdims=True))
    pick = (guess + rng.gumbel(size=guess.shape)).argmax(axis=2)[..., None]
    tokens = np.take_along_axis(ids, pick, axis=2)[..., 0]
    point = rng.random((batch, width - 1, 1)) < 0.2
    log_q = np.where(point, np.where(ids == tokens[..., None], 0, -np.inf), log_q)
    count = rng.choice([0, width // 2, width - 1, width - 1], batch).astype(np.int32)
    rows = [
        request_row(p, (2,), seed=int(rng.integers(0, 2**63)), prompt_length=int(n))
        for p, n in zip(params, prompt_length, strict=True)
    ]
    return Rounds(
        logits=logits,
        drafts=Drafts(tokens, ids, log_q.astype(np.float32), count),
        params=params,
        sampling=stack_rows(rows),
        position=position,
        prompt_length=prompt_length,
        bonus=rng.integers(0, real, batch).astype(np.int32),
        banned=rng.random(size) < 0.05,
        allowed=rng.random((batch, width, size)) < rng.choice([0.8, 1.1], (batch, 1, 1)),
        counts=rng.integers(0, 4, (batch, size)).astype(np.int32),
        real=real,
    )


def decide(rounds: Rounds, chosen: np.ndarray | None = None, slot_seed: int = 0) -> Accepted:
    """`accept` for chosen requests in any slots, as NumPy arrays; all requests in batches of 40."""
    if chosen is None:
        rows = np.resize(np.arange(len(rounds.params)), -(-len(rounds.params) // BATCH) * BATCH)
        parts = [decide(rounds, part) for part in rows.reshape(-1, BATCH)]
        whole = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        return jax.tree.map(lambda leaf: leaf[: len(rounds.params)], whole)
    rng = np.random.default_rng(slot_seed)
    slots = rng.permutation(BATCH)[: len(chosen)].astype(np.int32)
    counts = rng.integers(0, 99, (BATCH, SIZE)).astype(np.int32)  # of others
    counts[slots] = rounds.counts[chosen]

    def of(leaf):
        return leaf[chosen]

    got = run(
        of(rounds.logits), jax.tree.map(of, rounds.drafts), jax.tree.map(of, rounds.sampling),
        of(rounds.position), fed=of(rounds.fed), vocab_size=np.int32(rounds.real),
        banned=rounds.banned, allowed=of(rounds.allowed), history=SlotCounts(counts, slots),
    )  # fmt: skip
    return jax.tree.map(np.asarray, got)


def assert_same(got: Accepted, want: Accepted, chosen=slice(None)) -> None:
    np.testing.assert_array_equal(got.count, want.count[chosen])
    np.testing.assert_array_equal(got.healthy, want.healthy[chosen])
    ok = got.healthy
    np.testing.assert_array_equal(got.token[ok], want.token[chosen][ok])


def target_row(rounds: Rounds, b: int, i: int) -> oracle.Row:
    """The oracle's logits of one row after everything, and whether a cut was close."""
    p, size = rounds.params[b], rounds.logits.shape[2]
    generated, in_prompt = rounds.counts[b] // 2, rounds.counts[b] % 2
    if rounds.position[b] == 0:
        generated, in_prompt = np.zeros_like(generated), np.zeros_like(in_prompt)
    for step, token in enumerate(rounds.fed[b, : i + 1]):
        if rounds.position[b] + step < rounds.prompt_length[b]:
            in_prompt[token] = 1
        else:
            generated[token] += 1
    x = oracle.penalise(
        rounds.logits[b, i], generated, in_prompt, presence=p.presence_penalty,
        frequency=p.frequency_penalty, repetition=p.repetition_penalty,
    )  # fmt: skip
    x = oracle.bias(x, dict(p.biases))
    removed = set(range(rounds.real, size)) | set(np.flatnonzero(rounds.banned))
    removed |= set(np.flatnonzero(~rounds.allowed[b, i]))
    if rounds.position[b] + i + 1 < rounds.prompt_length[b] + p.min_tokens:
        removed |= {2, *p.stop_ids}
    x = oracle.remove(x, removed)
    if p.temperature == 0:
        best, second = oracle.ranked(x)[:2]
        return oracle.Row(np.where(np.arange(size) == best, 0, -np.inf), x[best] - x[second] < 1e-5)
    return oracle.truncated(x, t=p.temperature, minimum=p.min_p, k=p.top_k, p=p.top_p)


def replay(rounds: Rounds, b: int, log_u: np.ndarray, noise: np.ndarray) -> tuple | None:
    """(count, token) of one request by the plain rule in float64, or None if anything was close. log_u [Q], noise [Q, V]."""
    drafts = rounds.drafts
    for i in range(rounds.logits.shape[1]):
        row = target_row(rounds, b, i)
        if row.close:
            return None
        p = oracle.probabilities(row.x)
        if i < drafts.count[b]:
            q = np.zeros_like(p)
            listed = np.isfinite(drafts.log_q[b, i])
            q[drafts.ids[b, i][listed]] = np.exp(drafts.log_q[b, i][listed].astype(np.float64))
            d = drafts.tokens[b, i]
            ratio = p[d] / q[d]
            if abs(np.exp(log_u[i]) - ratio) < 1e-5 * max(1, ratio):
                return None
            if np.exp(log_u[i]) < ratio:
                continue
            p = np.maximum(p - q, 0)
        scores = np.log(p, where=p > 0, out=np.full_like(p, -np.inf)) + noise[i]
        best, second = oracle.ranked(scores)[:2]
        return (i, best) if scores[best] - scores[second] > 1e-3 else None
    raise AssertionError("the last row has no draft")


@pytest.mark.parametrize("real", [40, 65, REAL])
def test_every_decision_agrees_with_a_replay_in_float64(real):
    check_replay(rounds_of(real, real))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_every_decision_of_many_rounds_agrees_with_a_replay_in_float64(seed):
    check_replay(rounds_of(seed))


def check_replay(rounds: Rounds) -> None:
    got, width = decide(rounds), WIDTH
    compared, accepted = 0, 0
    for b in range(BATCH):
        seed = jnp.repeat(rounds.sampling.seed[b][None], width, axis=0)
        position = jnp.asarray(rounds.position[b] + 1 + np.arange(width))
        words = token_words(seed, position, jnp.zeros((width, 1), jnp.int32), STREAM_ACCEPT)
        log_u = np.log(np.asarray(uniform(words), np.float64))[:, 0]
        noise = np.asarray(gumbel_noise(seed, position, STREAM_TARGET, size=SIZE), np.float64)
        want = replay(rounds, b, log_u, noise)
        if want is not None:
            assert (got.count[b], got.token[b]) == want, rounds.params[b]
            compared, accepted = compared + 1, accepted + want[0]
    assert compared >= 30
    assert accepted >= 8


def recorded(rounds: Rounds) -> np.ndarray:
    """Token history once the bonus token is in it."""
    batch = len(rounds.params)
    fed = FedTokens(
        rounds.bonus[:, None], rounds.position, np.ones(batch, np.int32),
        np.arange(batch, dtype=np.int32), rounds.prompt_length, np.ones(batch, bool),
    )  # fmt: skip
    return np.asarray(jitted_record(TokenHistory(jnp.asarray(rounds.counts)), fed))


def jitted_record(history: TokenHistory, fed: FedTokens) -> jax.Array:
    """Counts after `record`."""
    names = [field.name for field in fields(FedTokens)]

    def counts(*leaves) -> jax.Array:
        return record(history, FedTokens(**dict(zip(names, leaves, strict=True))), 0).counts

    return jax.jit(counts)(*(getattr(fed, name) for name in names))


@pytest.mark.parametrize("width", [1, WIDTH])
def test_without_drafts_the_token_is_that_of_sample(width):
    rounds = rounds_of(1)
    none = replace(rounds.drafts, count=np.zeros(40, np.int32))
    none = Drafts(
        *(leaf[:, : width - 1] for leaf in (none.tokens, none.ids, none.log_q)), none.count
    )
    logits, allowed = rounds.logits[:, :width], rounds.allowed[:, :width]
    got = decide(replace(rounds, drafts=none, logits=logits, allowed=allowed))
    history = SlotCounts(recorded(rounds), np.arange(40, dtype=np.int32))
    want = draw(
        rounds.logits[:, 0], rounds.sampling, rounds.position + 1, vocab_size=np.int32(rounds.real),
        banned=rounds.banned, allowed=rounds.allowed[:, 0], history=history,
    )  # fmt: skip
    np.testing.assert_array_equal(got.token, want)
    assert not got.count.any()
    assert got.healthy.all()


def test_neighbours_with_drafts_do_not_change_a_row_without():
    rounds = rounds_of(2)
    count = np.where(np.arange(40) % 2, rounds.drafts.count, 0).astype(np.int32)
    mixed = decide(replace(rounds, drafts=replace(rounds.drafts, count=count)))
    alone = decide(replace(rounds, drafts=replace(rounds.drafts, count=np.zeros_like(count))))
    np.testing.assert_array_equal(mixed.token[::2], alone.token[::2])


@pytest.mark.parametrize(
    "batch", [1, 8, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4))]
)
def test_a_row_decides_the_same_in_any_batch_and_slot(batch):
    rounds = rounds_of(3)
    together = decide(rounds)
    order = np.random.default_rng(batch).permutation(40)
    for index, chosen in enumerate(order.reshape(-1, batch)[:10]):
        assert_same(decide(rounds, chosen, slot_seed=index), together, chosen)


def simple(logits, tokens, count=None, **settings) -> Rounds:
    """Rounds of equal plain requests with point-mass drafts; padded to the common shape with places and ids not meant."""
    logits, tokens = np.asarray(logits, np.float32), np.asarray(tokens, np.int32)
    batch, width, real = logits.shape
    padding = ((0, 0), (0, WIDTH - width))
    logits = np.pad(logits, (*padding, (0, SIZE - real)), constant_values=50)
    count = np.full(batch, width - 1) if count is None else np.asarray(count)
    drafts = point_masses(
        jnp.asarray(np.pad(tokens, padding)), jnp.asarray(count, jnp.int32), CANDIDATES
    )
    params = [SamplingParams(**settings)] * batch
    rows = [request_row(p, (), seed=i * 31, prompt_length=5) for i, p in enumerate(params)]
    return Rounds(
        logits=logits,
        drafts=jax.tree.map(np.array, drafts),
        params=params,
        sampling=stack_rows(rows),
        position=np.full(batch, 5, np.int32),
        prompt_length=np.full(batch, 5),
        bonus=np.zeros(batch, np.int32),
        banned=np.zeros(SIZE, bool),
        allowed=np.ones((batch, WIDTH, SIZE), bool),
        counts=np.zeros((batch, SIZE), np.int32),
        real=real,
    )


def test_a_greedy_chain_ends_at_the_first_draft_that_is_not_the_argmax():
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(BATCH, WIDTH, 90))
    best = logits.argmax(axis=2)
    wrong = rng.random((BATCH, WIDTH - 1)) < 0.2
    tokens = np.where(wrong, (best[:, :-1] + 1) % 90, best[:, :-1])
    count = rng.integers(0, WIDTH, BATCH)
    got = decide(simple(logits, tokens, count, temperature=0.0))
    stops = np.concatenate([wrong, np.ones((BATCH, 1), bool)], axis=1)
    want = np.minimum(stops.argmax(axis=1), count)
    np.testing.assert_array_equal(got.count, want)
    np.testing.assert_array_equal(got.token, best[np.arange(BATCH), want])
    assert got.healthy.all()
    assert set(want.tolist()) == set(range(WIDTH))


@pytest.mark.parametrize("temperature", [0.0, 1.0, 1e-30])
@pytest.mark.parametrize("bad", [np.nan, np.inf, "empty"])
def test_a_chain_stops_at_a_bad_row_and_says_how_much_came_before(temperature, bad):
    logits = np.zeros((6, 4, 40))
    tokens = np.tile([3, 4, 5], (6, 1))
    logits[:, [0, 1, 2], [3, 4, 5]] = 90  # certain
    logits[:, 3, 6] = 90
    rounds = simple(logits, tokens, [3, 3, 3, 3, 1, 3], temperature=temperature)
    rounds.drafts.tokens[5, 0] = 9  # rejected before the bad row
    rounds.drafts.ids[5, 0] = 9
    for row, place in [(0, 0), (1, 1), (2, 3), (4, 2), (5, 1)]:
        rounds.logits[row, place, slice(0, 40) if bad == "empty" else 7] = (
            -np.inf if bad == "empty" else bad
        )
    got = decide(rounds)
    assert got.count.tolist() == [0, 1, 3, 3, 1, 0]
    assert got.healthy.tolist() == [False, False, False, True, True, True]
    assert got.token[3:].tolist() == [6, 4, 3]


def test_a_row_whose_grammar_allows_nothing_is_unhealthy():
    rounds = simple(np.zeros((2, 3, 40)), np.full((2, 2), 3), temperature=1.0)
    rounds.allowed[0, 0] = False
    got = decide(rounds)
    assert got.healthy.tolist() == [False, True]
    assert got.count[0] == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_impossible_draft_is_rejected_and_not_emitted(temperature):
    size = 40
    logits = np.zeros((64, 2, size))
    logits[:, 0, 3] = 4
    cases = [3, 3, 9, -1, size, size + 6, size + 500, 8]
    tokens = np.tile(cases, 8)[:, None]
    rounds = simple(logits, tokens, temperature=temperature, top_k=5)
    rounds.banned[3] = True
    rounds.allowed[:, :, 8] = False
    got = decide(rounds)
    assert not got.count.any()
    assert got.healthy.all()
    assert set(got.token.tolist()) <= {0, 1, 2, 4, 5}


def test_a_draft_that_its_proposal_does_not_list_counts_as_no_draft():
    logits = np.random.default_rng(7).normal(size=(64, 2, 40))
    rounds = simple(logits, np.full((64, 1), 3), temperature=1.0)
    unlisted = replace(rounds.drafts, log_q=np.full_like(rounds.drafts.log_q, -np.inf))
    got = decide(replace(rounds, drafts=unlisted))
    none = decide(replace(rounds, drafts=replace(rounds.drafts, count=np.zeros(64, np.int32))))
    assert_same(got, none)


@pytest.mark.parametrize("top_k", [0, CANDIDATES])
def test_an_empty_residual_falls_back_to_the_target(top_k):
    """q is p times 1.2, as no distribution is, so that rejections leave nothing."""
    batch, real = 2000, CANDIDATES
    rng = np.random.default_rng(8)
    logits = np.full((batch, 2, real + 9), -np.inf)
    logits[:, :, :real] = rng.normal(size=real)
    p = oracle.probabilities(logits[0, 0].astype(np.float32).astype(np.float64))[:real]
    tokens = rng.choice(real, (batch, 1), p=p / p.sum())
    rounds = simple(logits, tokens, temperature=1.0, top_k=top_k)
    rounds.drafts.ids[:, 0] = np.arange(real)
    rounds.drafts.log_q[:, 0] = np.log(p * 1.2)
    got = decide(rounds)
    rejected = got.count == 0
    assert 0.12 < rejected.mean() < 0.22
    assert got.token.max() < real
    seen = np.bincount(got.token[rejected], minlength=real)
    assert stats.chisquare(seen, p / p.sum() * seen.sum()).pvalue > 1e-4


def test_a_draft_outside_top_k_is_rejected_even_if_its_logit_ties():
    logits = np.zeros((200, 2, 40))
    logits[:, 0, :6] = 5
    tokens = np.repeat([2, 3], 100)[:, None]
    got = decide(simple(logits, tokens, temperature=1.0, top_k=3))
    assert 15 < got.count[:100].sum() < 55
    assert not got.count[100:].any()
    assert set(got.token[100:].tolist()) == {0, 1, 2}


def test_min_tokens_holds_at_each_row_by_its_own_position():
    logits = np.zeros((1, 4, 40))
    logits[0, :, 3] = 9
    logits[0, :, 4] = 5
    params = SamplingParams(temperature=0.0, min_tokens=3, stop_token_ids=[3])
    rounds = simple(logits, [[4, 3, 3]], temperature=0.0)
    state = stack_rows([request_row(params, (), seed=0, prompt_length=5)])
    got = decide(
        replace(rounds, sampling=state)
    )  # rows pick positions 6, 7, 8, 9; 5, 6 and 7 are early
    assert (got.count[0], got.token[0]) == (1, 4)
    rounds.drafts.tokens[0, 1] = 4
    got = decide(replace(rounds, sampling=state))
    assert (got.count[0], got.token[0]) == (3, 3)


def test_counts_of_a_round_are_what_recording_would_make():
    rng = np.random.default_rng(9)
    batch, width, size = 12, 5, 30
    fed = rng.integers(0, 8, (batch, width)).astype(np.int32)  # repeats
    start = rng.integers(0, 6, batch).astype(np.int32)
    prompt_length = rng.integers(0, 9, batch).astype(np.int32)
    counts, slots = rng.integers(0, 9, (20, size)).astype(np.int32), rng.permutation(20)[:batch]
    source = RoundCounts(*map(jnp.asarray, (counts, slots, fed, start, prompt_length)))
    generated, seen = jax.jit(RoundCounts.rows)(source)
    for i in range(width):
        tokens = FedTokens(
            fed, start, np.full(batch, i + 1), slots, prompt_length, np.ones(batch, bool)
        )
        after = jitted_record(TokenHistory(jnp.asarray(counts)), tokens)[slots]
        np.testing.assert_array_equal(generated.reshape(batch, width, size)[:, i], after // 2)
        np.testing.assert_array_equal(seen.reshape(batch, width, size)[:, i], after > 0)


def always(jaxpr) -> set[str]:
    """Names of the primitives of a program outside the branches of its conditions."""
    names = set()
    for eqn in jaxpr.eqns:
        names.add(eqn.primitive.name)
        if eqn.primitive.name != "cond":
            for inner in jaxprs_in_params(eqn.params):
                names |= always(inner)
    return names


def test_a_batch_of_greedy_rows_needs_no_noise_no_order_and_no_exponential():
    rounds = simple(np.zeros((2, WIDTH, 40)), np.zeros((2, WIDTH - 1)), temperature=0.0)
    program = partial(accept, fed=rounds.fed, vocab_size=40)
    jaxpr = jax.make_jaxpr(program)(rounds.logits, rounds.drafts, rounds.sampling, rounds.position)
    names = always(jaxpr.jaxpr)
    assert "cond" in names
    assert not names & {"exp", "log", "log1p", "expm1", "top_k", "sort", "while", "mul_hi", "mulhi"}
