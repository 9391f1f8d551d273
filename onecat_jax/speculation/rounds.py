"""The speculative round: draft, verify and commit, written once. Pure functions of (params, state, operands), which run once
per rank inside shard_map under tensor parallelism; `launch.py` composes them into a device loop.

A round feeds each running row's last token b and its drafts d_1 .. d_m at positions L .. L + m, accepts n of them and picks one
more token x. What belonged to rejected drafts leaves no trace: keys and values beyond the new length are never read, GDN states
are replayed over the accepted rows only, history and drafter see accepted rows only. Without drafts a round is a decode step.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array

from onecat_jax.models.qwen3_5 import StepBatch, logits
from onecat_jax.models.qwen3_5.forward import Capture, Passed, commit_gdn, forward_with
from onecat_jax.sampling import SamplingState, SlotCounts
from onecat_jax.sampling.acceptance import Accepted, accept
from onecat_jax.sampling.drafts import Drafts
from onecat_jax.speculation.interface import Committed, DraftRows, Extending
from onecat_jax.speculation.pace import Pace, advance
from onecat_jax.speculation.params import EngineParams
from onecat_jax.state import CacheState
from onecat_jax.steps import StepOptions, TokenScores, remember, score

RUNNING, STOPPED, LENGTH, UNHEALTHY = range(4)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RoundRows:
    """Requests in a launch. A row of padding has status STOPPED and slot 0."""

    token: Array  # [B] int32 last token, not yet in the state
    position: Array  # [B] int32 its absolute position = tokens in the state
    budget: Array  # [B] int32 new tokens that may still come
    status: Array  # [B] int32 RUNNING or why the row ended
    pace: Pace  # [B] how many drafts each row should have
    slots: Array  # [B] int32
    table: Array  # [B, P] int32

    @property
    def running(self) -> Array:
        """[B] bool"""
        return self.status == RUNNING


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Round:
    """What one round gave each row. Rows that didn't run have counts of 0."""

    tokens: Array  # [B, Q] int32 delivered tokens, -1 behind the last one
    count: Array  # [B] int32 delivered tokens
    drafted: Array  # [B] int32 drafts that were verified
    accepted: Array  # [B] int32 drafts among them that were accepted, whether or not they were still delivered
    scores: TokenScores | None  # [B, Q, ...] of the delivered tokens


def draft(
    params: EngineParams,
    state: CacheState,
    rows: RoundRows,
    sampling: SamplingState,
    banned: Array,
    options: StepOptions,
    *,
    width: int,
) -> tuple[CacheState, Drafts]:
    """Proposes drafts for the running rows.

    Args:
      params, state: donate the state.
      rows: the requests.
      sampling: their settings.
      banned: bool [V] ids never sampled, the rank's slice.
      options: static.
      width: Q, static; 1 asks for none.
    """
    if width == 1:
        return state, Drafts.none(rows.token.shape[0])
    # Beside its drafts a round brings one more token.
    most = jnp.minimum(rows.budget - 1, width - 1)
    wanted = jnp.clip(rows.pace.wanted(options.pacing), 0, most)
    asked = DraftRows(
        token=rows.token,
        position=rows.position,
        wanted=jnp.where(rows.running, wanted, 0),
        slots=jnp.where(rows.running, rows.slots, 0),
        table=rows.table,
    )
    drafts, state = options.drafter_of(width).draft(params, state, asked, sampling, banned)
    return state, replace(drafts, count=jnp.minimum(drafts.count, asked.wanted))


def verify_commit(
    params: EngineParams,
    state: CacheState,
    rows: RoundRows,
    drafts: Drafts,
    sampling: SamplingState,
    banned: Array,
    options: StepOptions,
    *,
    k: int | None,
    allowed: Array | None = None,
) -> tuple[CacheState, RoundRows, Round]:
    """Verifies drafts, picks one more token and leaves the state as it would be without the rejected ones.

    Args:
      params, state, rows, sampling, banned, options: as `draft`.
      drafts: count must be 0 for rows that don't run and below a row's budget.
      k: None for no scores, else how many of the likeliest tokens come with each token (static).
      allowed: bool [B, Q, V] what a grammar allows at each place, the rank's slice; None for no grammar.
    """
    width = 1 + drafts.tokens.shape[1]
    tokens = jnp.concatenate([rows.token[:, None], drafts.tokens], axis=1)
    batch = StepBatch(
        tokens=tokens,
        start=jnp.where(rows.running, rows.position, 0),
        count=jnp.where(rows.running, 1 + drafts.count, 0),
        slots=jnp.where(rows.running, rows.slots, 0),
        table=rows.table,
    )
    capture = Capture(options.taps, rollback=width > 1)
    passed = forward_with(params.target, state, batch, options.forward, capture)
    row_logits = logits(params.target, passed.hidden, options.forward)
    accepted = accept(
        row_logits,
        drafts,
        sampling,
        rows.position,
        vocab_size=options.vocab_size,
        banned=banned,
        allowed=allowed,
        history=SlotCounts(state.history.counts, batch.slots),
        fed=tokens,
        shards=options.shards,
    )
    moved, result = _deliver(rows, drafts, accepted, sampling)
    state = _commit(params, passed, batch, result, sampling, options)
    rows = replace(moved, pace=_paced(state, rows, moved, result, options))
    if k is not None:
        result = replace(
            result, scores=score(row_logits, jnp.maximum(result.tokens, 0), k, options)
        )
    return state, rows, result


def _deliver(
    rows: RoundRows, drafts: Drafts, accepted: Accepted, sampling: SamplingState
) -> tuple[RoundRows, Round]:
    """Cuts what was accepted at the first stop token and moves the rows on."""
    batch, width = drafts.tokens.shape[0], drafts.tokens.shape[1] + 1
    place = jnp.arange(width)
    n = accepted.count[:, None]
    chain = jnp.pad(drafts.tokens, ((0, 0), (0, 1)))
    chain = jnp.where(place == n, accepted.token[:, None], chain)
    good = jnp.where(accepted.healthy, accepted.count + 1, accepted.count)
    stops = (chain[:, :, None] == sampling.stop_ids[:, None]) & (sampling.stop_ids >= 0)[:, None]
    stops = jnp.any(stops, axis=-1) & (place < good[:, None])
    stopped = jnp.any(stops, axis=-1)
    count = jnp.where(stopped, jnp.argmax(stops, axis=-1).astype(jnp.int32) + 1, good)
    count = jnp.where(rows.running, count, 0)
    budget = rows.budget - count
    status = jnp.where(budget <= 0, LENGTH, RUNNING)
    status = jnp.where(accepted.healthy, status, UNHEALTHY)
    status = jnp.where(stopped, STOPPED, status)
    last = chain[jnp.arange(batch), jnp.maximum(count - 1, 0)]
    moved = replace(
        rows,
        token=jnp.where(count > 0, last, rows.token),
        position=rows.position + count,
        budget=budget,
        status=jnp.where(rows.running, status, rows.status),
    )
    delivered = jnp.where(place < count[:, None], chain, -1)
    verified = jnp.where(rows.running, accepted.count, 0)
    return moved, Round(delivered, count, drafts.count, verified, None)


def _paced(
    state: CacheState, before: RoundRows, rows: RoundRows, result: Round, options: StepOptions
) -> Pace:
    """What the round says about the drafts of the next ones."""
    if options.drafter is None:
        return rows.pace
    ready = jnp.zeros_like(rows.running)
    if isinstance(options.drafter, Extending):
        live = jnp.where(rows.running, rows.pace.most, 0)
        asked = DraftRows(rows.token, rows.position, live, rows.slots, rows.table)
        ready = options.drafter.ready(state, asked)
    return advance(
        before.pace,
        options.pacing,
        running=before.running,
        drafted=result.drafted,
        emitted=result.accepted + 1,
        ready=ready,
    )


def _commit(
    params: EngineParams,
    passed: Passed,
    batch: StepBatch,
    result: Round,
    sampling: SamplingState,
    options: StepOptions,
) -> CacheState:
    """As many rows as tokens were delivered: the last of them isn't fed yet, b was."""
    state, count = passed.state, result.count
    if passed.kept is not None:
        where = (batch.slots, batch.start, count)
        gdn = commit_gdn(params.target, state.gdn, passed.kept, *where, options.forward)
        state = replace(state, gdn=gdn)
    committed = Committed(
        tokens=batch.tokens,
        next_tokens=jnp.maximum(result.tokens, 0),
        hidden=passed.hidden,
        taps=passed.taps,
        start=batch.start,
        count=count,
        slots=batch.slots,
        table=batch.table,
    )
    return remember(params, state, committed, sampling.prompt_length, sampling.penalised, options)
