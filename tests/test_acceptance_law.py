"""What a round emits has the distribution of the target, and as many drafts are accepted as theory says; faults are caught.

Oracle: `acceptance_walks`, exact laws in float64 by enumeration. Each place of a round is compared given what came before
it (chi-square over 200,000 rounds), and so is the mean number of accepted drafts; the same statistic must reject planted
faults. Not covered: several rounds of an engine in a row.
"""

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from acceptance_walks import (
    BANNED,
    BONUS,
    PADDING,
    POSITION,
    Emitted,
    Problem,
    Tables,
    Walk,
    p_values,
    point_walk,
    states,
    walk,
    walk_with,
)
from jax import Array

from onecat_jax.sampling import Drafts, SamplingState, SlotCounts, accept
from onecat_jax.sampling.counts import RoundCounts
from onecat_jax.sampling.randomness import STREAM_ACCEPT, STREAM_DRAFT, STREAM_TARGET

acceptance = importlib.import_module("onecat_jax.sampling.acceptance")

CHUNK = 50_000
WALKS: dict[str, Walk] = {"walk": walk, "point": point_walk}
PENALTIES = {"presence_penalty": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.4}
PROBLEMS = [
    Problem(13, settings={"temperature": 1.0}),
    Problem(1, settings={"temperature": 0.7, "top_k": 5}),
    Problem(2, settings={"temperature": 1.0, "top_p": 0.8}, draft_temperature=1.5),
    Problem(16, settings={"temperature": 0.8, "min_p": 0.1}),
    Problem(4, settings={"temperature": 1.3, "top_k": 9, "top_p": 0.9, "min_p": 0.02}),
    Problem(5, settings={"temperature": 1.0, **PENALTIES}),
    Problem(6, settings={"temperature": 0.9, "top_k": 7, **PENALTIES}, prompt_length=POSITION + 1),
    Problem(7, settings={"logit_bias": {0: 2.0, 4: -1.5, 9: 1.0}, "top_p": 0.9}),
    Problem(34, settings={"temperature": 1.0}, proposal="point"),
    Problem(70, settings={"temperature": 0.7, "top_k": 6, **PENALTIES}, proposal="point"),
    Problem(10, settings={"temperature": 1.0, "top_p": 0.95}, grammar=True),
    Problem(24, settings={"temperature": 0.4}, draft_temperature=0.4),
]
LONG = Problem(12, drafts=7, settings={"temperature": 1.2, "top_p": 0.9})


@jax.jit
def round_of(tables: Tables, state: SamplingState, drafts: Drafts) -> tuple[Array, Array]:
    """Emitted tokens [B, Q] and accepted drafts [B] of one round per row."""
    batch, (width, size) = state.seed.shape[0], tables.logits.shape[:2]
    fed = jnp.concatenate([jnp.full((batch, 1), BONUS), drafts.tokens], axis=1)
    got = accept(
        tables.logits[jnp.arange(width), fed],
        drafts,
        state,
        jnp.full(batch, POSITION, jnp.int32),
        fed=fed,
        vocab_size=size - PADDING,
        banned=jnp.arange(size) == BANNED,
        allowed=jnp.broadcast_to(tables.allowed, (batch, width, size)),
        history=SlotCounts(tables.counts, jnp.zeros(batch, jnp.int32)),
    )
    places = jnp.pad(drafts.tokens, ((0, 0), (0, 1)))
    return places.at[jnp.arange(batch), got.count].set(got.token), got.count


def emit(
    problem: Problem, rounds: int, draft: Walk | None = None, run: Callable = round_of
) -> Emitted:
    draft, parts = jax.jit(draft or WALKS[problem.proposal]), []
    for first in range(0, rounds, CHUNK):
        state = states(problem, CHUNK, first)
        drafts = draft(problem.tables, state.seed, jnp.float32(problem.draft_temperature))
        parts.append(run(problem.tables, state, drafts))
    tokens, count = (np.concatenate([np.asarray(part[i]) for part in parts]) for i in (0, 1))
    return Emitted(tokens, count)


def assert_exact(problem: Problem, rounds: int) -> None:
    found = p_values(problem, emit(problem, rounds))
    assert min(found.values()) * len(found) > 1e-4, found


@pytest.mark.parametrize(
    "problem",
    [
        *PROBLEMS[:7],
        *[pytest.param(problem, marks=pytest.mark.slow) for problem in PROBLEMS[7:]],
    ],
    ids=lambda p: str(p.seed),
)
def test_every_token_of_a_round_follows_the_target_distribution(problem):
    assert_exact(problem, 200_000)


def test_a_long_chain_follows_the_target_distribution():
    assert_exact(LONG, CHUNK)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 40))
def test_random_problems_follow_the_target_distribution(seed):
    settings = [problem.settings for problem in PROBLEMS]
    assert_exact(Problem(seed, settings=settings[seed % len(settings)]), 400_000)


def test_the_mean_of_the_accepted_drafts_is_neither_none_nor_all():
    for problem in (*PROBLEMS, LONG):
        assert 0.2 < problem.mean_accepted() < 0.8 * problem.drafts


def doubt(problem: Problem, draft: Walk | None = None, run: Callable = round_of) -> float:
    """The smallest p-value, corrected for their number."""
    found = p_values(problem, emit(problem, CHUNK, draft, run))
    return min(found.values()) * len(found)


def wrong_temperature(tables: Tables, seed: Array, temperature: Array) -> Drafts:
    return walk_with(tables, seed, temperature * 0.8, temperature)


def agreeing_lookup(tables: Tables, seed: Array, temperature: Array) -> Drafts:
    """Calls a drawn draft a point mass where it happens to agree with a fixed guess."""
    drafts = walk(tables, seed, temperature)
    agrees = (drafts.tokens == tables.ids[:, 1])[..., None]
    point = jnp.where(drafts.ids == drafts.tokens[..., None], 0.0, -jnp.inf)
    return replace(drafts, log_q=jnp.where(agrees, point, drafts.log_q))


def neighbours_proposal(tables: Tables, seed: Array, temperature: Array) -> Drafts:
    """Reports the distributions that another walk was drawn from."""
    drafts = walk(tables, seed, temperature)
    return replace(drafts, log_q=jnp.roll(drafts.log_q, 1, axis=0))


@pytest.mark.parametrize("draft", [wrong_temperature, agreeing_lookup, neighbours_proposal])
def test_a_proposal_that_is_not_the_realised_one_is_caught(draft):
    assert doubt(PROBLEMS[0], draft) < 1e-6


FAULTS = {
    "none": 0,
    "passes without ratio": 0,
    "passes whatever is possible": 0,
    "one number for a whole chain": 0,
    "residual is p": 0,
    "residual of the head is p": 1,
    "residual has the draft's noise": 0,
    "decision has the residual's noise": 0,
    "decision has the draft's noise": 0,
    "mass ignores the cut": 1,
    "penalties forget the round": 5,
}  # and the problem that shows it
NUMBERS = {name: number for number, name in enumerate(FAULTS)}


@jax.jit
def faulty_round(tables: Tables, state: SamplingState, drafts: Drafts, fault: Array) -> tuple:
    """`round_of` with one of the faults, all in one program: it takes seconds to compile."""

    def on(name: str, wrong, right):
        assert name in FAULTS
        return jax.tree.map(partial(jnp.where, fault == NUMBERS[name]), wrong, right)

    genuine = {name: getattr(acceptance, name) for name in (
        "_ratio_test", "_log_uniform", "_target", "row_residual", "head_residual"
    )}  # fmt: skip
    rows = RoundCounts.rows

    def ratio_test(log_u, log_p, log_q):
        right = genuine["_ratio_test"](log_u, log_p, log_q)
        right = on("passes without ratio", log_u < log_p, right)
        return on("passes whatever is possible", log_p > -jnp.inf, right)

    def log_uniform(chain):
        width = drafts.tokens.shape[1] + 1
        first = jnp.repeat(chain.positions[::width], width)
        shared = genuine["_log_uniform"](chain._replace(positions=first))
        return on("one number for a whole chain", shared, genuine["_log_uniform"](chain))

    def target(scaled, chain, vocabulary):
        right = genuine["_target"](scaled, chain, vocabulary)
        uncut = right._replace(log_mass=jax.nn.logsumexp(scaled, axis=-1))
        return on("mass ignores the cut", uncut, right)

    def old_rows(counts):
        old = jnp.repeat(counts.counts[counts.slots], counts.columns.shape[1], axis=0)
        return on("penalties forget the round", (old // 2, old > 0), rows(counts))

    with pytest.MonkeyPatch.context() as patch:
        for name, change in (
            ("_ratio_test", ratio_test),
            ("_log_uniform", log_uniform),
            ("_target", target),
            ("row_residual", lambda x, *rest: on(
                "residual is p", x, genuine["row_residual"](x, *rest)
            )),
            ("head_residual", lambda head, *rest: on(
                "residual of the head is p", head, genuine["head_residual"](head, *rest)
            )),
            ("STREAM_TARGET", on("residual has the draft's noise", STREAM_DRAFT, STREAM_TARGET)),
            ("STREAM_ACCEPT", on(
                "decision has the residual's noise", STREAM_TARGET,
                on("decision has the draft's noise", STREAM_DRAFT, STREAM_ACCEPT),
            )),
        ):  # fmt: skip
            patch.setattr(acceptance, name, change)
        patch.setattr(RoundCounts, "rows", old_rows)
        return round_of.__wrapped__(tables, state, drafts)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name):
    problem = PROBLEMS[FAULTS[name]]
    found = doubt(problem, run=partial(faulty_round, fault=jnp.int32(NUMBERS[name])))
    assert found > 1e-4 if name == "none" else found < 1e-6
