"""Prefill of one chunk, and what it shares with the rounds that follow. Pure functions (params, state, operands) -> (state,
result), which run once per rank inside shard_map under tensor parallelism."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.models.qwen3_5 import ForwardOptions, StepBatch, logits
from onecat_jax.models.qwen3_5.forward import Capture, forward_with
from onecat_jax.sampling import token_logprobs
from onecat_jax.sharding import Shards
from onecat_jax.speculation.interface import Committed, Drafter
from onecat_jax.speculation.pace import NO_PACING, Pacing
from onecat_jax.speculation.params import EngineParams
from onecat_jax.state import CacheState, FedTokens, record

_HEAD_ROWS = 64  # prompt rows whose logits exist at a time


@dataclass(frozen=True)
class StepOptions:
    """Static choices of all programs."""

    forward: ForwardOptions
    vocab_size: int  # ids from here on are padding of the table and never sampled
    launch_rounds: int  # of one launch at most
    drafters: tuple[Drafter, ...] = ()  # by number of drafts; they share one state
    pacing: Pacing = NO_PACING  # how many drafts requests get

    @property
    def shards(self) -> Shards:
        return self.forward.shards

    @property
    def widths(self) -> tuple[int, ...]:
        """Rows that a round may have: 1, and one more than the drafts of each drafter."""
        return (1, *(drafter.drafts + 1 for drafter in self.drafters))

    @property
    def drafter(self) -> Drafter | None:
        """The one that keeps the state."""
        return self.drafters[-1] if self.drafters else None

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers whose outputs the drafter wants."""
        return self.drafter.taps if self.drafter else ()

    def drafter_of(self, width: int) -> Drafter:
        """The one whose rounds have so many rows."""
        return next(drafter for drafter in self.drafters if drafter.drafts + 1 == width)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Chunk:
    """Known tokens to feed."""

    batch: StepBatch
    next_tokens: Array  # [B, T] int32 the token after each row
    penalised: Array  # [B] bool rows whose history is wanted


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TokenScores:
    """Log probabilities of chosen tokens and of the k likeliest, leading axes as the tokens'."""

    logprob: Array  # [..., ] float32 nats
    rank: Array  # [..., ] int32, 1 = likeliest
    top_ids: Array  # [..., k] int32
    top_logprobs: Array  # [..., k] float32


def score(row_logits: Array, tokens: Array, k: int, options: StepOptions) -> TokenScores:
    """Scores a token per row of logits: [..., V] and int32 [...]."""
    lead = tokens.shape
    logprob, top_ids, top_logprobs, rank = token_logprobs(
        row_logits.reshape(-1, row_logits.shape[-1]),
        tokens.reshape(-1),
        k,
        vocab_size=options.vocab_size,
        shards=options.shards,
    )
    flat = TokenScores(logprob, rank, top_ids, top_logprobs)
    return jax.tree.map(lambda a: a.reshape(*lead, *a.shape[1:]), flat)


def empty_scores(shape: tuple[int, ...], k: int) -> TokenScores:
    """Scores of nothing, with these leading axes."""
    return TokenScores(
        jnp.zeros(shape, jnp.float32),
        jnp.zeros(shape, jnp.int32),
        jnp.zeros((*shape, k), jnp.int32),
        jnp.zeros((*shape, k), jnp.float32),
    )


def remember(
    params: EngineParams,
    state: CacheState,
    rows: Committed,
    prompt_length: Array,
    penalised: Array,
    options: StepOptions,
) -> CacheState:
    """Takes rows that have become part of their sequences into token history and drafter.

    Args:
      prompt_length: [B] int32, tokens at smaller positions belong to the prompt.
      penalised: [B] bool, rows whose history is wanted.
    """
    fed = FedTokens(rows.tokens, rows.start, rows.count, rows.slots, prompt_length, penalised)
    offset = options.shards.rank() * state.history.counts.shape[1]
    state = replace(state, history=record(state.history, fed, offset))
    return options.drafter.commit(params, state, rows) if options.drafter else state


def feed(
    params: EngineParams, state: CacheState, chunk: Chunk, options: StepOptions
) -> tuple[Array, CacheState]:
    """Runs prompt tokens into caches, token history and drafter: hidden rows [B, T, E] and the new state."""
    batch = chunk.batch
    passed = forward_with(params.target, state, batch, options.forward, Capture(options.taps))
    committed = Committed(
        tokens=batch.tokens,
        next_tokens=chunk.next_tokens,
        hidden=passed.hidden,
        taps=passed.taps,
        start=batch.start,
        count=batch.count,
        slots=batch.slots,
        table=batch.table,
    )
    end = batch.start + batch.count
    state = remember(params, passed.state, committed, end, chunk.penalised, options)
    return passed.hidden, state


def prefill(
    params: EngineParams, state: CacheState, chunk: Chunk, options: StepOptions
) -> tuple[CacheState, None]:
    """Runs one chunk of prompts into the state; computes no logits."""
    return feed(params, state, chunk, options)[1], None


def prefill_scored(
    params: EngineParams, state: CacheState, chunk: Chunk, options: StepOptions, *, k: int
) -> tuple[CacheState, TokenScores]:
    """Prefill that also scores the token after each row: scores [T, ...] of the first batch row."""
    hidden, state = feed(params, state, chunk, options)
    scores = score_rows(params, hidden, chunk.next_tokens, options, k=k)
    return state, jax.tree.map(lambda a: a[0], scores)


def score_rows(
    params: EngineParams, hidden: Array, targets: Array, options: StepOptions, *, k: int
) -> TokenScores:
    """Scores a token per hidden row: [B, T, E] and int32 [B, T] -> scores [B, T, ...].

    The head runs over 64 rows at a time (T is a multiple of 64, or less), so the logits of a whole chunk never exist.
    """
    pieces = hidden.reshape(-1, min(_HEAD_ROWS, hidden.shape[1]), hidden.shape[-1])

    def piece(rows: tuple[Array, Array]) -> TokenScores:
        return score(logits(params.target, rows[0], options.forward), rows[1], k, options)

    scores = lax.map(piece, (pieces, targets.reshape(pieces.shape[:2])))
    return jax.tree.map(lambda a: a.reshape(*targets.shape, *a.shape[2:]), scores)
