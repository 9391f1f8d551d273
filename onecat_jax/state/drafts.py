"""What drafters keep between rounds: windows of draft keys and values, hidden rows, the tokens themselves. All by slot."""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec as P

from onecat_jax.state.pages import PagedKV


@dataclass(frozen=True)
class DraftShape:
    """Sizes of a drafter's state on one device; zero for what it doesn't keep."""

    layers: int = 0  # of the draft model
    ring: int = 0  # pages of one slot
    page_size: int = 16  # tokens
    kv_heads: int = 0
    head_dim: int = 0
    kv_dtype: str = "float32"  # of the array
    hidden: int = 0  # features of the MTP head's rows
    tokens: int = 0  # of the longest sequence, for lookup

    def nbytes(self, slots: int) -> int:
        """Bytes for so many slots, slot 0 included."""
        itemsize = jnp.dtype(self.kv_dtype).itemsize
        token = 2 * self.layers * self.kv_heads * self.head_dim * itemsize
        return slots * (self.ring * self.page_size * token + 4 * self.hidden + 4 * self.tokens)

    def zeros(self, slots: int) -> "DraftState":
        """The empty state."""
        return DraftState(
            window=self._window(slots) if self.layers else None,
            hidden=jnp.zeros((slots, self.hidden), jnp.float32) if self.hidden else None,
            tokens=jnp.zeros((slots, self.tokens), jnp.int32) if self.tokens else None,
        )

    def _window(self, slots: int) -> "DraftWindow":
        pages = slots * self.ring
        shape = (self.layers * pages, self.page_size, self.kv_heads, self.head_dim)
        k, v = (jnp.zeros(shape, self.kv_dtype) for _ in range(2))
        return DraftWindow(PagedKV(k, v, pages), self.ring)


NO_DRAFTS = DraftShape()


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
    hidden: Array | None = (
        None  # [slots, E] float32: the MTP head's output for the last committed row
    )
    tokens: Array | None = None  # [slots, N] int32: lookup reads the sequence itself

    def with_window(self, kv: PagedKV) -> "DraftState":
        """The same with other keys and values."""
        assert self.window is not None, "a DFlash drafter has a window"
        return replace(self, window=replace(self.window, kv=kv))

    def specs(self, axis: str) -> "DraftState":
        """How the pieces of tensor-parallel ranks lie along a mesh axis: keys and values by heads, the rest whole."""
        heads = P(None, None, axis)
        window = self.window and replace(
            self.window,
            kv=PagedKV(heads, heads, self.window.kv.pages),  # type: ignore[arg-type]  # specs in the place of arrays
        )
        hidden = None if self.hidden is None else P()
        tokens = None if self.tokens is None else P()
        return DraftState(window, hidden, tokens)  # type: ignore[arg-type]
