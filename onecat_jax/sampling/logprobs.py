"""Log probabilities of the raw model distribution, before temperature and truncation."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.sampling.sums import tree_sum
from onecat_jax.sampling.transforms import clean
from onecat_jax.sharding import WHOLE, Shards


def token_logprobs(
    logits: Array,
    tokens: Array,
    k: int,
    *,
    vocab_size: int | None = None,
    shards: Shards = WHOLE,
) -> tuple[Array, Array, Array, Array]:
    """Log probabilities of the chosen tokens and of the k likeliest.

    Args:
      logits: [B, V], any float type; computed in float32.
      tokens: int32 [B], the chosen ids.
      k: how many of the likeliest to return, static, may be 0.
      vocab_size: ids from here on are padding and hold no mass; default V.
    Returns:
      logprob float32 [B] of the chosen token; top_ids int32 [B, k] and top_logprobs float32 [B, k] in the order value
      descending, id ascending; rank int32 [B] of the chosen token in that order, 1 for the first.
    """
    with jax.named_scope("token_logprobs"):
        logprobs = log_softmax(logits, vocab_size=vocab_size)
        column = tokens[:, None]
        chosen = jnp.take_along_axis(logprobs, column, axis=-1)
        ids = lax.broadcasted_iota(jnp.int32, logprobs.shape, 1)
        ahead = (logprobs > chosen) | ((logprobs == chosen) & (ids < column))
        rank = jnp.sum(ahead, axis=-1, dtype=jnp.int32) + 1
        top_logprobs, top_ids = lax.top_k(logprobs, k)
        return chosen[:, 0], top_ids, top_logprobs, rank


def log_softmax(logits: Array, *, vocab_size: int | None = None) -> Array:
    """Float32 log probabilities [B, V]; the sum is taken in one order for every batch size."""
    x = clean(logits)
    if vocab_size is not None:
        x = jnp.where(jnp.arange(x.shape[-1]) < vocab_size, x, -jnp.inf)
    largest = jnp.max(x, axis=-1, keepdims=True)
    x = x - jnp.where(jnp.isfinite(largest), largest, 0.0)
    return x - jnp.log(tree_sum(jnp.exp(x)))[:, None]
