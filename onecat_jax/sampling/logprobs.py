"""Log probabilities of the raw model distribution, before temperature and truncation."""

import jax
import jax.numpy as jnp
from jax import Array

from onecat_jax.sampling.transforms import clean
from onecat_jax.sampling.vocabulary import ALL_IDS, Vocabulary
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
      logits: [B, V], any float type; computed in float32. Under tensor parallelism the rank's slice of V.
      tokens: int32 [B], the chosen ids.
      k: how many of the likeliest to return, static, may be 0.
      vocab_size: ids from here on (of the whole vocabulary) are padding and hold no mass; default V.
      shards: the ranks that share V.
    Returns, the same on all ranks:
      logprob float32 [B] of the chosen token; top_ids int32 [B, k] and top_logprobs float32 [B, k] in the order value
      descending, id ascending; rank int32 [B] of the chosen token in that order, 1 for the first.
    """
    vocabulary = Vocabulary(shards)
    with jax.named_scope("token_logprobs"):
        logprobs = log_softmax(logits, vocab_size=vocab_size, vocabulary=vocabulary)
        chosen = vocabulary.value_at(logprobs, tokens)
        column, ids = chosen[:, None], vocabulary.ids(logprobs)
        ahead = (logprobs > column) | ((logprobs == column) & (ids < tokens[:, None]))
        top_logprobs, top_ids = vocabulary.top(logprobs, k)
        return chosen, top_ids, top_logprobs, vocabulary.count(ahead) + 1


def log_softmax(
    logits: Array, *, vocab_size: int | None = None, vocabulary: Vocabulary = ALL_IDS
) -> Array:
    """Float32 log probabilities [B, V] (the rank's slice); the sum is taken in one order for every batch size."""
    x = clean(logits)
    if vocab_size is not None:
        x = jnp.where(vocabulary.ids(x) < vocab_size, x, -jnp.inf)
    largest = vocabulary.largest(x)
    x = x - jnp.where(jnp.isfinite(largest), largest, 0.0)[:, None]
    return x - jnp.log(vocabulary.total(jnp.exp(x)))[:, None]
