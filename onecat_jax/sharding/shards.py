"""The tensor-parallel axis as a program inside shard_map sees it."""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array, lax

TP = "tp"  # the mesh axis


@dataclass(frozen=True)
class Shards:
    """How many ranks share a program's tensors. Static and hashable.

    With one rank every method is the identity and no mesh is needed, so one program serves every degree. Results that must
    be the same on all ranks (sampled tokens, loop conditions) may be computed from what these methods return: all ranks
    get the same bits.
    """

    size: int = 1

    def rank(self) -> Array | int:
        """This program's rank: int32 scalar, or 0 with one rank."""
        return lax.axis_index(TP) if self.size > 1 else 0

    def sum(self, x: Array) -> Array:
        """Sum over all ranks: one all-reduce."""
        return lax.psum(x, TP) if self.size > 1 else x

    def gather(self, x: Array) -> Array:
        """[...] of each rank -> [ranks, ...], in rank order: one all-gather. For small things, never for weights."""
        return lax.all_gather(x, TP) if self.size > 1 else x[None]

    def own(self, x: Array) -> Array:
        """This rank's slice of something that every rank has whole: [..., ranks * n] -> [..., n]."""
        if self.size == 1:
            return x
        width = x.shape[-1] // self.size
        return lax.dynamic_slice_in_dim(x, self.rank() * width, width, axis=-1)

    def concatenate(self, x: Array) -> Array:
        """[..., n] of each rank -> [..., ranks * n], in rank order along the last axis."""
        if self.size == 1:
            return x
        return jnp.concatenate(list(self.gather(x)), axis=-1)


WHOLE = Shards()  # one rank that holds everything
