"""What is left of a target distribution p once a draft of the proposal q was rejected: max(p - q, 0), not normalised.

Written as logits of p with the ids of q moved down: log(p - q) = log p + log(1 - exp(log q - log p)), so an id without q keeps
its bits. Rounding may leave nothing (p = q but for the last bits); then p itself is drawn from. Where it leaves a little that
exact arithmetic wouldn't, the draft was rejected with a probability of that size only, about 1e-7.
"""

import jax.numpy as jnp
from jax import Array

from onecat_jax.sampling.cut import Head
from onecat_jax.sampling.drafts import log_q_at
from onecat_jax.sampling.vocabulary import Vocabulary


def lowered(values: Array, log_mass: Array, log_q: Array) -> Array:
    """Logits of max(p - q, 0), float32 as all arguments.

    Args:
      values: logits of p.
      log_mass: log of the sum of exp(logits) over the whole row, so that values - log_mass is log p.
      log_q: nats; -inf leaves the value as it is.
    """
    below = log_q - (values - log_mass)
    left = jnp.where(below < 0, values + jnp.log(-jnp.expm1(below)), -jnp.inf)
    return jnp.where(log_q == -jnp.inf, values, left)


def head_residual(head: Head, log_mass: Array, ids: Array, log_q: Array) -> Head:
    """The head with the logits of the residual, no longer in order: log_mass [B], ids and log_q [B, U]."""
    values = lowered(head.values, log_mass[:, None], log_q_at(head.tokens, ids, log_q))
    kept = jnp.arange(values.shape[-1]) < head.kept[:, None]
    left = jnp.any(kept & (values > -jnp.inf), axis=-1, keepdims=True)
    return head._replace(values=jnp.where(left, values, head.values))


def row_residual(
    logits: Array, log_mass: Array, ids: Array, log_q: Array, vocabulary: Vocabulary
) -> Array:
    """Rows [B, V], or the rank's slice of them, with the logits of the residual; arguments as in `head_residual`."""
    columns = vocabulary.columns(logits, jnp.where(log_q > -jnp.inf, ids, -1))
    inside = jnp.minimum(columns, logits.shape[-1] - 1)
    values = jnp.take_along_axis(logits, inside, axis=-1)
    rows = jnp.arange(logits.shape[0])[:, None]
    x = logits.at[rows, columns].set(lowered(values, log_mass[:, None], log_q), mode="drop")
    return jnp.where((vocabulary.largest(x) > -jnp.inf)[:, None], x, logits)
