"""Paged keys and values, GDN states, convolution windows of all layers as flat arrays, and what each sequence has seen.

Layers never have an array (or a slice) of their own: page id = layer * pages + page, slot id = layer * slots + slot, so that
no step can copy a cache by cutting a layer out of it. Page 0 and slot 0 of every layer are padding: they are written by rows
that don't exist and never read for a request.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec as P

from onecat_jax.state.drafts import NO_DRAFTS, DraftShape, DraftState
from onecat_jax.state.history import TokenHistory
from onecat_jax.state.pages import PagedKV


@dataclass(frozen=True)
class CacheShape:
    """Sizes of the state on one device (local heads under tensor parallelism)."""

    attention_layers: int
    pages: int  # per layer, page 0 included
    page_size: int  # tokens
    kv_heads: int
    head_dim: int
    gdn_layers: int
    slots: int  # per layer, slot 0 included
    value_heads: int
    key_dim: int
    value_dim: int
    conv_channels: int
    conv_width: int
    vocab: int

    def kv_bytes(self, itemsize: int) -> int:
        """Bytes of keys and values together."""
        tokens = self.attention_layers * self.pages * self.page_size
        return 2 * tokens * self.kv_heads * self.head_dim * itemsize

    def gdn_bytes(self, conv_itemsize: int) -> int:
        """Bytes of recurrent states (float32) and windows together."""
        state = 4 * self.value_heads * self.key_dim * self.value_dim
        window = (self.conv_width - 1) * self.conv_channels * conv_itemsize
        return self.gdn_layers * self.slots * (state + window)

    @property
    def history_bytes(self) -> int:
        """Bytes of the token counts."""
        return 4 * self.slots * self.vocab


@partial(jax.tree_util.register_dataclass, data_fields=["state", "window"], meta_fields=["slots"])
@dataclass(frozen=True)
class GDNCache:
    """Recurrent states and convolution windows of all GDN layers."""

    state: Array  # [layers * slots, Hv, Dv, Dk] float32
    window: Array  # [layers * slots, W-1, C] raw projected rows before the convolution
    slots: int  # slots per layer


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CacheState:
    """Everything a forward pass reads and replaces."""

    kv: PagedKV
    gdn: GDNCache
    history: TokenHistory
    draft: DraftState

    @staticmethod
    def zeros(
        shape: CacheShape,
        *,
        kv_dtype: jnp.dtype,
        window_dtype: jnp.dtype,
        draft: DraftShape = NO_DRAFTS,
    ) -> "CacheState":
        """An empty state. Layers of a kind that the model lacks give arrays of length zero."""
        kv = (shape.attention_layers * shape.pages, shape.page_size, shape.kv_heads, shape.head_dim)
        rows = shape.gdn_layers * shape.slots
        state = (rows, shape.value_heads, shape.value_dim, shape.key_dim)
        window = (rows, shape.conv_width - 1, shape.conv_channels)
        return CacheState(
            PagedKV(jnp.zeros(kv, kv_dtype), jnp.zeros(kv, kv_dtype), shape.pages),
            GDNCache(jnp.zeros(state, jnp.float32), jnp.zeros(window, window_dtype), shape.slots),
            TokenHistory.zeros(shape.slots, shape.vocab),
            draft.zeros(shape.slots),
        )

    def specs(self, axis: str) -> "CacheState":
        """How the pieces of tensor-parallel ranks lie side by side along a mesh axis: by heads, channels and ids."""
        heads = P(None, None, axis)
        return CacheState(
            PagedKV(heads, heads, self.kv.pages),  # type: ignore[arg-type]  # specs in the place of arrays
            GDNCache(P(None, axis), heads, self.gdn.slots),  # type: ignore[arg-type]
            TokenHistory(P(None, axis)),  # type: ignore[arg-type]
            self.draft.specs(axis),
        )
