"""What drafters keep between rounds: windows of draft keys and values, hidden rows, the tokens themselves. All by slot."""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from onecat_jax.state.caches import PagedKV


@partial(jax.tree_util.register_dataclass, data_fields=["kv"], meta_fields=["ring"])
@dataclass(frozen=True)
class DraftWindow:
    """Keys and values of a draft model's layers for the last positions of each slot.

    A slot owns a ring of `ring` pages in each layer: the token at position t lies in page (t // S) mod ring of the ring. Paged
    operators see it through a table that repeats the ring, so nothing about it is special to them.
    """

    kv: PagedKV  # pages per layer: slots * ring
    ring: int  # pages of one slot

    @staticmethod
    def ring_pages(window: int | None, max_len: int, rows: int, page_size: int) -> int:
        """Pages of a ring.

        Args:
          window: positions that a row may look back (its own included); None for all.
          max_len: positions of the longest sequence.
          rows: positions of a block that is written beyond the last committed token.
          page_size: tokens per page.
        """
        whole = -(-(max_len + rows) // page_size)
        if window is None:
            return whole
        return min(whole, -(-(window + rows) // page_size) + 1)

    @property
    def tokens(self) -> int:
        """Positions that a ring holds."""
        return self.ring * self.kv.k.shape[1]

    def table(self, slots: Array, max_len: int) -> Array:
        """Block tables [B, P] of slots [B] for positions below max_len."""
        pages = jnp.arange(-(-max_len // self.kv.k.shape[1]), dtype=jnp.int32)
        return slots[:, None] * self.ring + pages % self.ring


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DraftState:
    """What the drafter of an engine needs of each slot; parts that it doesn't use are None."""

    window: DraftWindow | None = None  # DFlash
    hidden: Array | None = None  # [slots, E] float32: the MTP head's output for the last committed row
    tokens: Array | None = None  # [slots, N] int32: lookup reads the sequence itself

    def with_window(self, kv: PagedKV) -> "DraftState":
        """The same with other keys and values."""
        assert self.window is not None, "a DFlash drafter has a window"
        return replace(self, window=replace(self.window, kv=kv))
