"""The device programs: prefill of one chunk, and a loop of decode steps. Pure functions (params, state, operands) -> (state,
result), which run once per rank inside shard_map under tensor parallelism."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.models.qwen3_5 import ForwardOptions, Params, StepBatch, forward, logits
from onecat_jax.sampling import (
    SamplingState,
    SlotCounts,
    healthy_rows,
    sample,
    stop_hits,
    token_logprobs,
)
from onecat_jax.sharding import Shards
from onecat_jax.state import CacheState, FedTokens, record

RUNNING, STOPPED, LENGTH, UNHEALTHY = range(4)
_HEAD_ROWS = 64  # prompt rows whose logits exist at a time


@dataclass(frozen=True)
class StepOptions:
    """Static choices of all programs."""

    forward: ForwardOptions
    vocab_size: int  # ids from here on are padding of the table and never sampled
    launch_steps: int

    @property
    def shards(self) -> Shards:
        return self.forward.shards


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DecodeRows:
    """Requests in a decode launch. A row of padding has status STOPPED and slot 0."""

    token: Array  # [B] int32 last token, not yet in the state
    position: Array  # [B] int32 its absolute position = tokens in the state
    budget: Array  # [B] int32 new tokens that may still come
    status: Array  # [B] int32 RUNNING or why the row ended
    slots: Array  # [B] int32
    table: Array  # [B, P] int32


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TokenScores:
    """Log probabilities of chosen tokens and of the k likeliest, leading axes as the tokens'."""

    logprob: Array  # [..., ] float32 nats
    rank: Array  # [..., ] int32, 1 = likeliest
    top_ids: Array  # [..., k] int32
    top_logprobs: Array  # [..., k] float32


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Launch:
    """What one decode launch gives back. R = launch_steps."""

    rows: DecodeRows
    tokens: Array  # [R, B] int32, -1 where a row had ended
    count: Array  # [B] int32 tokens emitted by each row, its first ones
    scores: TokenScores | None  # [R, B, ...]


def _score(hidden_logits: Array, tokens: Array, k: int, options: StepOptions) -> TokenScores:
    logprob, top_ids, top_logprobs, rank = token_logprobs(
        hidden_logits, tokens, k, vocab_size=options.vocab_size, shards=options.shards
    )
    return TokenScores(logprob, rank, top_ids, top_logprobs)


def feed(
    params: Params,
    state: CacheState,
    batch: StepBatch,
    prompt_length: Array,
    penalised: Array,
    options: StepOptions,
) -> tuple[Array, CacheState]:
    """Runs new rows into caches and token history: hidden rows [B, T, E] and the new state.

    Args:
      prompt_length: [B] int32, tokens at smaller positions belong to the prompt.
      penalised: [B] bool, rows whose history is wanted.
    """
    hidden, state = forward(params, state, batch, options.forward)
    fed = FedTokens(batch.tokens, batch.start, batch.count, batch.slots, prompt_length, penalised)
    offset = options.shards.rank() * state.history.counts.shape[1]
    return hidden, replace(state, history=record(state.history, fed, offset))


def prefill(
    params: Params,
    state: CacheState,
    batch: StepBatch,
    penalised: Array,
    options: StepOptions,
) -> tuple[CacheState, None]:
    """Runs one chunk of prompts into the state; computes no logits. penalised: bool [B], see `feed`."""
    _, state = feed(params, state, batch, batch.start + batch.count, penalised, options)
    return state, None


def prefill_scored(
    params: Params,
    state: CacheState,
    batch: StepBatch,
    penalised: Array,
    targets: Array,
    options: StepOptions,
    *,
    k: int,
) -> tuple[CacheState, TokenScores]:
    """Prefill that also scores the token after each row: targets int32 [1, T] -> scores [T, ...]."""
    prompt_length = batch.start + batch.count
    hidden, state = feed(params, state, batch, prompt_length, penalised, options)
    scores = score_rows(params, hidden, targets, options, k=k)
    return state, jax.tree.map(lambda a: a[0], scores)


def score_rows(
    params: Params, hidden: Array, targets: Array, options: StepOptions, *, k: int
) -> TokenScores:
    """Scores a token per hidden row: [B, T, E] and int32 [B, T] -> scores [B, T, ...].

    The head runs over 64 rows at a time (T is a multiple of 64, or less), so the logits of a whole chunk never exist.
    """
    pieces = hidden.reshape(-1, min(_HEAD_ROWS, hidden.shape[1]), hidden.shape[-1])

    def piece(rows: tuple[Array, Array]) -> TokenScores:
        return _score(logits(params, rows[0], options.forward), rows[1], k, options)

    scores = lax.map(piece, (pieces, targets.reshape(pieces.shape[:2])))
    return jax.tree.map(lambda a: a.reshape(*targets.shape, *a.shape[2:]), scores)


def _decode_step(
    params: Params,
    state: CacheState,
    rows: DecodeRows,
    sampling: SamplingState,
    banned: Array,
    options: StepOptions,
) -> tuple[CacheState, DecodeRows, Array, Array]:
    """Feeds each running row's last token and picks the next one. Returns logits [B, V] and tokens [B] too."""
    running = rows.status == RUNNING
    batch = StepBatch(
        tokens=rows.token[:, None],
        start=jnp.where(running, rows.position, 0),
        count=running.astype(jnp.int32),
        slots=jnp.where(running, rows.slots, 0),
        table=rows.table,
    )
    hidden, state = feed(params, state, batch, sampling.prompt_length, sampling.penalised, options)
    scores = logits(params, hidden[:, 0], options.forward)
    position = rows.position + running
    token = sample(
        scores,
        sampling,
        position,
        vocab_size=options.vocab_size,
        banned=banned,
        history=SlotCounts(state.history.counts, batch.slots),
        shards=options.shards,
    )
    budget = rows.budget - running
    status = jnp.where(budget <= 0, LENGTH, RUNNING)
    status = jnp.where(stop_hits(token, sampling), STOPPED, status)
    healthy = healthy_rows(scores, vocab_size=options.vocab_size, shards=options.shards)
    status = jnp.where(healthy, status, UNHEALTHY)
    rows = DecodeRows(
        token=jnp.where(running, token, rows.token),
        position=position,
        budget=budget,
        status=jnp.where(running, status, rows.status),
        slots=rows.slots,
        table=rows.table,
    )
    return state, rows, scores, jnp.where(running & healthy, token, -1)


def decode(
    params: Params,
    state: CacheState,
    rows: DecodeRows,
    sampling: SamplingState,
    banned: Array,
    steps: Array,
    options: StepOptions,
    *,
    k: int | None,
) -> tuple[CacheState, Launch]:
    """Up to `steps` decode steps in one loop on the device; ends early when every row has ended.

    Args:
      params, state: donate the state.
      rows: the requests.
      sampling: their settings.
      banned: bool [V] ids never sampled, of the whole vocabulary.
      steps: int32 scalar, at most options.launch_steps.
      options: static.
      k: None for no scores, else how many of the likeliest tokens come with each token (static).
    """
    batch, banned = rows.token.shape[0], options.shards.own(banned)
    shape = (options.launch_steps, batch)
    tokens = jnp.full(shape, -1, jnp.int32)
    scores = None if k is None else _empty_scores(shape, k)

    def body(carry: tuple) -> tuple:
        step, state, rows, tokens, scores = carry
        state, rows, row_logits, token = _decode_step(
            params, state, rows, sampling, banned, options
        )
        tokens = tokens.at[step].set(token)
        if k is not None:
            new = _score(row_logits, jnp.maximum(token, 0), k, options)
            scores = jax.tree.map(lambda all_steps, one: all_steps.at[step].set(one), scores, new)
        return step + 1, state, rows, tokens, scores

    def more(carry: tuple) -> Array:
        return (carry[0] < steps) & jnp.any(carry[2].status == RUNNING)

    carry = (jnp.zeros((), jnp.int32), state, rows, tokens, scores)
    _, state, rows, tokens, scores = lax.while_loop(more, body, carry)
    return state, Launch(rows, tokens, jnp.sum(tokens >= 0, axis=0, dtype=jnp.int32), scores)


def _empty_scores(shape: tuple[int, int], k: int) -> TokenScores:
    return TokenScores(
        jnp.zeros(shape, jnp.float32),
        jnp.zeros(shape, jnp.int32),
        jnp.zeros((*shape, k), jnp.int32),
        jnp.zeros((*shape, k), jnp.float32),
    )
