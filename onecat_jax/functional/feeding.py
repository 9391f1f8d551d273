"""Running given tokens through the model, in chunks on the grid that the engine uses."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.custom_calls.gdn import CHUNK
from onecat_jax.functional.arguments import prompts, same_batch
from onecat_jax.functional.model import Model
from onecat_jax.functional.ranks import over_ranks, specs
from onecat_jax.functional.sequences import State, pad_rows, padded_rows, tables
from onecat_jax.functional.settings import Sampling
from onecat_jax.models.qwen3_5 import Params, StepBatch
from onecat_jax.speculation.params import EngineParams
from onecat_jax.state import CacheState, TokenHistory
from onecat_jax.state.history import PROMPT
from onecat_jax.steps import Chunk, feed

_ROWS = 512  # rows of the matrix products of one chunk, about
Carry = TypeVar("Carry")


@dataclass(frozen=True)
class Chunks:
    """Tokens to feed, cut where the position is a multiple of 64.

    A row whose sequence ends between two multiples gets a short first chunk. So a sequence that is given in parts is cut as it
    would be in one piece, apart from cuts at the parts' own borders.
    """

    tokens: Array  # [rows, T] int32
    start: Array  # [rows] int32 tokens in the caches
    count: Array  # [rows] int32 tokens to feed
    size: int  # tokens of a full chunk, a multiple of 64

    @staticmethod
    def of(tokens: Array, start: Array, count: Array) -> "Chunks":
        """The largest chunks that keep programs small: powers of two times 64."""
        rows, width = tokens.shape
        size = CHUNK
        while size < width and rows * size * 2 <= _ROWS:
            size *= 2
        return Chunks(tokens, start, count, size)

    @property
    def number(self) -> Array:
        """Chunks of the row that has most of them, [] int32."""
        later = jnp.maximum(self.count - self._first, 0)
        return jnp.max(jnp.where(self.count > 0, 1 + -(-later // self.size), 0))

    @property
    def _first(self) -> Array:
        """Tokens of each row's first chunk, [rows]."""
        beyond = self.start % CHUNK
        return jnp.where(beyond == 0, self.size, CHUNK - beyond)

    def begin(self, index: Array) -> Array:
        """Where chunk `index` of each row begins, counted in `tokens`, [rows]."""
        return jnp.where(index == 0, 0, self._first + (index - 1) * self.size)

    def _ids(self, begin: Array) -> Array:
        """[rows, size] tokens from `begin` on; what lies behind a row's end is some token."""
        at = begin[:, None] + jnp.arange(self.size, dtype=jnp.int32)
        return jnp.take_along_axis(self.tokens, at, axis=1, mode="clip")

    def following(self, index: Array) -> Array:
        """The token after each one of chunk `index`, [rows, size]."""
        return self._ids(self.begin(index) + 1)

    def batch(self, index: Array, slots: Array, table: Array) -> StepBatch:
        """Chunk `index` of all rows."""
        begin, end = self.begin(index), self.begin(index + 1)
        count = jnp.maximum(jnp.minimum(end, self.count) - begin, 0)
        ids = self._ids(begin)
        return StepBatch(ids, self.start + begin, count, jnp.where(count > 0, slots, 0), table)

    def each(self, body: Callable[[Array, Carry], Carry], carry: Carry) -> Carry:
        """Folds body(index, carry) over the chunks that exist."""
        return lax.fori_loop(0, self.number, body, carry)


def prefill(
    model: Model, params: Params, state: State, tokens: Any, lengths: Any, sampling: Sampling
) -> State:
    """Continues sequences with given tokens: a prompt, or the next turn of a conversation.

    Args:
      model: static.
      params: weights.
      state: donate it.
      tokens: integers [B, T], right-padded.
      lengths: integers [B], tokens of each row; a row of 0 stays as it is.
      sampling: settings that the rows will be decoded with: rows with penalties count their prompts.

    Returns:
      the state after the tokens. A row that has no room for all of its tokens takes none and is marked in `overflow`.

    Raises:
      RequestError: wrong shapes or dtypes.
    """
    ids, counts = prompts(tokens, lengths, state.batch)
    same_batch(state.batch, sampling)
    return _prefill(model, params, state, ids, counts, sampling)


@partial(jax.jit, static_argnums=0)
def _prefill(
    model: Model, params: Params, state: State, tokens: Array, lengths: Array, sampling: Sampling
) -> State:
    run = partial(extend, model)
    return over_ranks(model, run, params, state, tokens, lengths, sampling, out=specs(state))


def extend(
    model: Model, params: Params, state: State, tokens: Array, lengths: Array, sampling: Sampling
) -> State:
    """`prefill` on one rank. The last token of each row isn't fed: it is the first one of the decode loop."""
    total = state.length + lengths
    overflow = state.overflow | ((lengths > 0) & (total > state.capacity))
    lengths = jnp.where(overflow, 0, lengths)
    total = state.length + lengths
    waiting = state.length > 0  # rows whose last token comes first
    joined = jnp.where(
        waiting[:, None],
        jnp.concatenate([state.last[:, None], tokens], axis=1),
        jnp.pad(tokens, [(0, 0), (0, 1)]),
    )
    fed = lengths - jnp.where(waiting | (lengths == 0), 0, 1)
    start = jnp.maximum(state.length - 1, 0)
    caches = _all_prompt(state.caches, lengths > 0)
    caches = _feed(model, params, caches, joined, start, fed, sampling)
    newest = jnp.take_along_axis(tokens, jnp.maximum(lengths - 1, 0)[:, None], axis=1)[:, 0]
    given = lengths > 0
    return State(
        caches,
        length=total,
        last=jnp.where(given, newest, state.last),
        prompt=jnp.where(given, total, state.prompt),
        overflow=overflow,
    )


def _all_prompt(caches: CacheState, rows: Array) -> CacheState:
    """What these rows [B] have generated so far belongs to the prompt of what comes next, as it would if it were given anew."""
    counts = caches.history.counts
    slots = jnp.pad(rows, (1, counts.shape[0] - 1 - rows.shape[0]))[:, None]
    return replace(caches, history=TokenHistory(jnp.where(slots & (counts > 0), PROMPT, counts)))


def _feed(
    model: Model,
    params: Params,
    caches: CacheState,
    tokens: Array,
    start: Array,
    count: Array,
    sampling: Sampling,
) -> CacheState:
    pad = partial(pad_rows, rows=padded_rows(caches))
    chunks = Chunks.of(pad(tokens), pad(start), pad(count))
    slots, table = tables(caches)
    options, penalised = model.steps(1), pad(sampling.rows.penalised)

    def one(index: Array, caches: CacheState) -> CacheState:
        chunk = Chunk(chunks.batch(index, slots, table), chunks.following(index), penalised)
        return feed(EngineParams(params), caches, chunk, options)[1]

    return chunks.each(one, caches)
