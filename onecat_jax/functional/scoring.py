"""Log probabilities of given tokens."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.functional.arguments import prompts
from onecat_jax.functional.feeding import Chunks
from onecat_jax.functional.model import Model
from onecat_jax.functional.ranks import over_ranks
from onecat_jax.functional.sequences import empty, pad_rows, padded_rows, tables
from onecat_jax.functional.storage import check_length, kv_storage
from onecat_jax.models.qwen3_5 import Params
from onecat_jax.speculation.params import EngineParams
from onecat_jax.state import CacheState
from onecat_jax.steps import Chunk, feed, score_rows


def logprobs(model: Model, params: Params, tokens: Any, lengths: Any) -> Array:
    """Log probability of each token given those before it, under the model itself (before temperature and truncation).

    The logits of all tokens never exist at once: the head runs over 64 tokens at a time.

    Args:
      model: static.
      params: weights.
      tokens: integers [B, T], right-padded sequences.
      lengths: integers [B].

    Returns:
      float32 [B, T], nats. Column t belongs to tokens[:, t]. Column 0, which nothing comes before, and the columns from a
      row's length on are 0.

    Raises:
      RequestError: wrong shapes or dtypes, or T is beyond the model's limit.
    """
    ids, counts = prompts(tokens, lengths)
    check_length("the width of tokens", ids.shape[1], model)
    return _logprobs(model, params, ids, counts)


@partial(jax.jit, static_argnums=0)
def _logprobs(model: Model, params: Params, tokens: Array, lengths: Array) -> Array:
    return over_ranks(model, partial(_score, model), params, tokens, lengths)


def _score(model: Model, params: Params, tokens: Array, lengths: Array) -> Array:
    batch, width = tokens.shape
    caches = empty(model, batch, width, kv_storage("auto", model), history=False).caches
    rows = padded_rows(caches)
    fed, counts = pad_rows(tokens, rows), pad_rows(jnp.maximum(lengths - 1, 0), rows)
    chunks = Chunks.of(fed, jnp.zeros_like(counts), counts)
    slots, table = tables(caches)
    options, nobody = model.steps(1), jnp.zeros((rows,), bool)
    weights = EngineParams(params)
    found = jnp.zeros((rows, -(-width // chunks.size) * chunks.size), jnp.float32)

    def one(index: Array, carry: tuple[CacheState, Array]) -> tuple[CacheState, Array]:
        caches, found = carry
        chunk = Chunk(chunks.batch(index, slots, table), chunks.following(index), nobody)
        hidden, caches = feed(weights, caches, chunk, options)
        scores = score_rows(weights, hidden, chunk.next_tokens, options, k=0)
        return caches, lax.dynamic_update_slice(found, scores.logprob, (0, index * chunks.size))

    _, found = chunks.each(one, (caches, found))
    after = jnp.pad(found[:batch, : width - 1], [(0, 0), (1, 0)])  # of the token after each
    place = jnp.arange(width)
    return jnp.where((place > 0) & (place < lengths[:, None]), after, 0.0)
