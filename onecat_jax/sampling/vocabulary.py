"""The vocabulary axis as one rank sees it, and what it takes to decide over all of it.

Under tensor parallelism a rank holds the logits of a run of token ids. Every reduction here is taken locally, gathered (a few
numbers per row) and merged in rank order, so all ranks get the same bits and may branch on them. With one rank nothing is
gathered and nothing is merged.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.sampling.sums import tree_sum
from onecat_jax.sharding import WHOLE, Shards


@dataclass(frozen=True)
class Vocabulary:
    """Static. Arrays called x are [B, N] slices of rows of N * ranks ids, without NaN; N is the same on all ranks."""

    shards: Shards = WHOLE

    @property
    def split(self) -> bool:
        return self.shards.size > 1

    def size(self, x: Array) -> int:
        """Ids of all ranks, padding included."""
        return x.shape[-1] * self.shards.size

    def offset(self, x: Array) -> Array | int:
        """First id of this rank."""
        return self.shards.rank() * x.shape[-1]

    def ids(self, x: Array) -> Array:
        """Token ids of the columns, int32 [B, N]."""
        local = lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
        return local + self.offset(x) if self.split else local

    def columns(self, x: Array, ids: Array) -> Array:
        """Columns of token ids; N for ids that are negative or another rank's, which a scatter with mode="drop" skips."""
        width = x.shape[-1]
        local = ids - self.offset(x)
        return jnp.where((local >= 0) & (local < width), local, width)

    def largest(self, x: Array) -> Array:
        """[B]"""
        best = jnp.max(x, axis=-1)
        return jnp.max(self.shards.gather(best), axis=0) if self.split else best

    def total(self, x: Array) -> Array:
        """[B] float32, in a fixed order of additions."""
        part = tree_sum(x)
        return tree_sum(self.shards.gather(part).T) if self.split else part

    def count(self, mask: Array) -> Array:
        """How many are True: [B] int32."""
        part = jnp.sum(mask, axis=-1, dtype=jnp.int32)
        return jnp.sum(self.shards.gather(part), axis=0, dtype=jnp.int32) if self.split else part

    def any(self, *masks: Array) -> tuple[Array, ...]:
        """Rows [B] with a True, of several masks at once."""
        parts = [jnp.any(mask, axis=-1) for mask in masks]
        if not self.split:
            return tuple(parts)
        return tuple(jnp.any(self.shards.gather(jnp.stack(parts)), axis=0))

    def first_argmax(self, x: Array) -> tuple[Array, Array]:
        """The largest value [B] and the lowest id that has it, int32 [B].

        Two plain reductions, which vectorise on CPU where the one of jnp.argmax doesn't.
        """
        best = jnp.max(x, axis=-1)
        columns = lax.broadcasted_iota(jnp.int32, x.shape, 1)
        first = jnp.min(jnp.where(x == best[:, None], columns, x.shape[1] - 1), axis=-1)
        if not self.split:
            return best, first
        values, ids = self._gather_pairs(best, first + self.offset(x))  # [ranks, B]
        best = jnp.max(values, axis=0)
        return best, jnp.min(jnp.where(values == best, ids, jnp.iinfo(jnp.int32).max), axis=0)

    def top(self, x: Array, k: int) -> tuple[Array, Array]:
        """The k largest values, descending, equal ones by id: float32 [B, k] and int32 ids [B, k]; k at most `size`."""
        # Barriers keep later slices from merging into the one of top_k, which would turn it into a full sort. One each:
        # a barrier around the pair crashes XLA CPU's decomposition of top_k inside shard_map.
        values, ids = map(lax.optimization_barrier, lax.top_k(x, min(k, x.shape[-1])))
        if not self.split or k == 0:
            return values, ids
        # Pieces side by side in rank order hold equal values in the order of their ids, which top_k keeps.
        pieces = self._gather_pairs(values, ids + self.offset(x))  # [ranks, B, k]
        values, ids = (jnp.concatenate(list(piece), axis=-1) for piece in pieces)
        values, order = lax.top_k(values, k)
        return values, jnp.take_along_axis(ids, order, axis=-1)

    def value_at(self, x: Array, ids: Array) -> Array:
        """x of one id per row: [B], from int32 [B]."""
        columns = self.columns(x, ids)
        inside = jnp.minimum(columns, x.shape[-1] - 1)
        found = jnp.take_along_axis(x, inside[:, None], axis=-1)[:, 0]
        if not self.split:
            return found
        own = jnp.where(columns < x.shape[-1], found, -jnp.inf)
        return jnp.max(self.shards.gather(own), axis=0)

    def whole_rows(self, x: Array) -> Array:
        """The rows with the columns of all ranks. Moves much: only where nothing less decides."""
        return self.shards.concatenate(x)

    def _gather_pairs(self, values: Array, ids: Array) -> tuple[Array, Array]:
        """One gather for float32 values and int32 ids of the same shape: each [ranks, ...]."""
        bits = lax.bitcast_convert_type(values, jnp.int32)
        both = self.shards.gather(jnp.stack([bits, ids]))
        return lax.bitcast_convert_type(both[:, 0], jnp.float32), both[:, 1]


ALL_IDS = Vocabulary()  # one rank holds them all
