"""Drafted tokens and the distributions that they were drawn from."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array


def log_q_at(tokens: Array, ids: Array, log_q: Array) -> Array:
    """Log probabilities of tokens under a proposal: [..., N] and [..., U] twice -> [..., N], -inf where it isn't listed."""
    same = tokens[..., None] == ids[..., None, :]
    listed = jnp.where(same, log_q[..., None, :], -jnp.inf)
    return jnp.max(listed, axis=-1, initial=-jnp.inf)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Drafts:
    """One chain of drafts per row. The same on all tensor-parallel ranks.

    Draft j of row b stands at absolute position position[b] + 1 + j, where position[b] is that of the row's bonus token. Its
    proposal distribution is the realised one: given the drafts before it, and zero outside the listed ids. A point mass lists
    its token with log_q 0 and leaves the other places at -inf.
    """

    tokens: Array  # [B, Q-1] int32
    ids: Array  # [B, Q-1, U] int32 ids with q > 0, each once; places with log_q = -inf mean nothing
    log_q: Array  # [B, Q-1, U] float32 nats
    count: Array  # [B] int32 drafts that are meant, the first ones; 0 = none

    @staticmethod
    def none(batch: int, width: int = 0) -> "Drafts":
        """No drafts for anybody, in arrays of `width` places."""
        return point_masses(jnp.zeros((batch, width), jnp.int32), jnp.zeros(batch, jnp.int32))


def point_masses(tokens: Array, count: Array, candidates: int = 1) -> Drafts:
    """Drafts that were chosen without chance: tokens [B, Q-1], count [B]."""
    ids = jnp.broadcast_to(tokens[..., None], (*tokens.shape, candidates))
    first = jnp.arange(candidates) == 0
    log_q = jnp.broadcast_to(jnp.where(first, 0.0, -jnp.inf), ids.shape).astype(jnp.float32)
    return Drafts(tokens, ids, log_q, count)
