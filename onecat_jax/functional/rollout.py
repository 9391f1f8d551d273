"""Generation: a loop of decode steps over a state, and the whole way from prompts to new tokens."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from onecat_jax.functional.arguments import integers, prompts, same_batch, whole
from onecat_jax.functional.feeding import extend
from onecat_jax.functional.model import Model
from onecat_jax.functional.ranks import over_ranks, specs
from onecat_jax.functional.sequences import (
    State,
    empty,
    pad_rows,
    padded_rows,
    repeat_last_row,
    tables,
)
from onecat_jax.functional.settings import Sampling
from onecat_jax.functional.storage import check_length, kv_storage
from onecat_jax.models.qwen3_5 import Params
from onecat_jax.speculation.launch import Launch, launch
from onecat_jax.speculation.pace import NO_PACING, Pace
from onecat_jax.speculation.params import EngineParams
from onecat_jax.speculation.rounds import LENGTH, RUNNING, STOPPED, UNHEALTHY, RoundRows

EMPTY, OVERFLOW = 4, 5  # beside the ends that decode steps know

__all__ = [
    "EMPTY",
    "LENGTH",
    "OVERFLOW",
    "STOPPED",
    "UNHEALTHY",
    "Generated",
    "decode",
    "generate",
    "joined",
]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Generated:
    """New tokens of a batch. N is the largest number asked for."""

    tokens: Array  # [B, N] int32, -1 after the end; a stop token is the last of its row
    lengths: Array  # [B] int32 new tokens of each row
    logprobs: Array  # [B, N] float32 nats under the model itself (before temperature and truncation), 0 after the end
    status: Array  # [B] int32 why the row ended: STOPPED, LENGTH, UNHEALTHY, EMPTY or OVERFLOW


def generate(
    model: Model,
    params: Params,
    tokens: Any,
    lengths: Any,
    sampling: Sampling,
    *,
    max_new_tokens: int,
    limits: Any = None,
    kv_cache_dtype: str = "auto",
) -> Generated:
    """Continues prompts.

    Args:
      model: static.
      params: weights.
      tokens: integers [B, T], right-padded prompts.
      lengths: integers [B], tokens of each prompt; a row of 0 is empty and gets nothing.
      sampling: settings of the rows, see `functional.sampling`.
      max_new_tokens: static, N.
      limits: integers [B], new tokens of each row at most; N for all by default.
      kv_cache_dtype: storage of keys and values, see `new_state`.

    Raises:
      RequestError: wrong shapes or dtypes, or T + N is beyond the model's limit.
    """
    ids, counts = prompts(tokens, lengths)
    batch, width = ids.shape
    same_batch(batch, sampling)
    longest = width + whole("max_new_tokens", max_new_tokens, 1)
    check_length(f"the prompts' width {width} + max_new_tokens {max_new_tokens}", longest, model)
    kv = kv_storage(kv_cache_dtype, model)
    most = _limits(limits, batch, max_new_tokens)
    return _generate(model, max_new_tokens, kv, params, ids, counts, sampling, most)


def decode(
    model: Model,
    params: Params,
    state: State,
    sampling: Sampling,
    *,
    max_new_tokens: int,
    limits: Any = None,
) -> tuple[State, Generated]:
    """Continues the sequences of a state.

    Args:
      model: static.
      params: weights.
      state: donate it.
      sampling: settings of the rows; min_tokens and penalties count what was generated since the last `prefill`.
      max_new_tokens: static, N. A row also ends where the state has no more room for it.
      limits: integers [B], new tokens of each row at most; N for all by default.

    Returns:
      the state after the new tokens, which `prefill` and `decode` continue, and the tokens.

    Raises:
      RequestError: wrong shapes or dtypes.
    """
    same_batch(state.batch, sampling)
    whole("max_new_tokens", max_new_tokens, 1)
    most = _limits(limits, state.batch, max_new_tokens)
    return _decode(model, max_new_tokens, params, state, sampling, most)


def joined(tokens: Any, lengths: Any, out: Generated) -> tuple[Array, Array]:
    """Prompts and what came after them as one right-padded batch, for `logprobs` or a trainer.

    Args:
      tokens: integers [B, T], the prompts.
      lengths: integers [B].
      out: what `generate` made of them, N tokens wide.

    Returns:
      int32 [B, T + N], 0 behind the end, and the new lengths int32 [B].

    Raises:
      RequestError: wrong shapes or dtypes.
    """
    ids, counts = prompts(tokens, lengths, out.lengths.shape[0])
    place = jnp.arange(ids.shape[1] + out.tokens.shape[1])
    after = place - counts[:, None]  # place among the new tokens
    old = jnp.take_along_axis(ids, jnp.minimum(place, ids.shape[1] - 1)[None], axis=1)
    new = jnp.take_along_axis(out.tokens, jnp.maximum(after, 0), axis=1, mode="clip")
    both = jnp.where(after < 0, old, new)
    return jnp.where(after < out.lengths[:, None], both, 0), counts + out.lengths


def _limits(limits: Any, batch: int, count: int) -> Array:
    if limits is None:
        return jnp.full((batch,), count, jnp.int32)
    return jnp.clip(integers("limits", limits, "batch", (batch,)), 0, count)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _generate(
    model: Model,
    count: int,
    kv_dtype: str,
    params: Params,
    tokens: Array,
    lengths: Array,
    sampling: Sampling,
    limits: Array,
) -> Generated:
    batch, width = tokens.shape

    def run(params: Params, *operands: Any) -> Generated:
        tokens, lengths, sampling, limits = operands
        state = empty(model, batch, width + count, kv_dtype)
        state = extend(model, params, state, tokens, lengths, sampling)
        return advance(model, count, params, state, sampling, limits)[1]

    return over_ranks(model, run, params, tokens, lengths, sampling, limits)


@partial(jax.jit, static_argnums=(0, 1))
def _decode(
    model: Model, count: int, params: Params, state: State, sampling: Sampling, limits: Array
) -> tuple[State, Generated]:
    out = (specs(state), specs(limits))
    return over_ranks(
        model, partial(advance, model, count), params, state, sampling, limits, out=out
    )


def advance(
    model: Model, count: int, params: Params, state: State, sampling: Sampling, limits: Array
) -> tuple[State, Generated]:
    """`decode` on one rank."""
    ended = _ended(state)
    budget = jnp.minimum(limits, state.capacity - state.length)
    status = jnp.where(budget > 0, RUNNING, LENGTH)
    status = jnp.where(ended >= 0, STOPPED, status)
    pad = partial(pad_rows, rows=padded_rows(state.caches))
    slots, table = tables(state.caches)
    rows = RoundRows(
        token=pad(state.last),
        position=pad(state.length - 1),
        budget=pad(budget),
        status=jnp.pad(status, (0, slots.shape[0] - state.batch), constant_values=STOPPED),
        pace=Pace.start(jnp.zeros_like(slots), NO_PACING),
        slots=slots,
        table=table,
    )
    padded = partial(repeat_last_row, rows=slots.shape[0])
    settings = jax.tree.map(padded, sampling.after(state.prompt))
    steps, banned = jnp.asarray(count, jnp.int32), model.banned_mask()
    weights, options = EngineParams(params), model.steps(count)
    caches, done = launch(
        weights, state.caches, rows, settings, banned, steps, options, width=1, k=0
    )
    out = _generated(done, state.batch, ended)
    last = jnp.where(out.lengths > 0, done.rows.token[: state.batch], state.last)
    length = state.length + out.lengths
    return replace(state, caches=caches, length=length, last=last), out


def _ended(state: State) -> Array:
    """Why rows can't go on, -1 where they can, [B]."""
    why = jnp.where(state.length == 0, EMPTY, -1)
    return jnp.where(state.overflow, OVERFLOW, why)


def _generated(done: Launch, batch: int, ended: Array) -> Generated:
    rounds = done.rounds
    assert rounds.scores is not None, "asked for with k=0"
    tokens, logprobs = rounds.tokens[:, :batch, 0].T, rounds.scores.logprob[:, :batch, 0].T
    return Generated(
        tokens=tokens,
        lengths=jnp.sum(rounds.count[:, :batch], axis=0, dtype=jnp.int32),
        logprobs=jnp.where(tokens >= 0, logprobs, 0.0),
        status=jnp.where(ended >= 0, ended, done.rows.status[:batch]),
    )
