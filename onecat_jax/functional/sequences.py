"""Sequences on the device between calls: caches, and how far each row has come."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array

from onecat_jax.functional.model import Model
from onecat_jax.state import CacheState, DraftState, GDNCache, PagedKV, TokenHistory

PAGE = 16  # tokens


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """A batch of sequences. Donate it to the function that continues it.

    In the caches, row b owns slot b + 1 and the pages from 1 + b * P on; slot 0 and page 0 are padding.
    """

    caches: CacheState
    length: Array  # [B] int32 tokens of each sequence; all but the last are in the caches
    last: Array  # [B] int32 the last token, the next one to be fed
    prompt: Array  # [B] int32 tokens up to the last given one; what comes behind them was generated since
    overflow: Array  # [B] bool: more tokens were given than fit; such a row takes no more

    @property
    def batch(self) -> int:
        """Rows B."""
        return self.length.shape[0]

    @property
    def capacity(self) -> int:
        """Tokens that each sequence has room for."""
        return _pages_per_row(self.caches) * self.caches.kv.k.shape[1]


def tables(caches: CacheState) -> tuple[Array, Array]:
    """Slots [rows] and page tables [rows, P] of all rows, those that pad the batch included."""
    rows, pages = padded_rows(caches), _pages_per_row(caches)
    slots = 1 + jnp.arange(rows, dtype=jnp.int32)
    return slots, 1 + jnp.arange(rows * pages, dtype=jnp.int32).reshape(rows, pages)


def padded_rows(caches: CacheState) -> int:
    """Rows that the caches have room for: the batch, or more where a program needs more."""
    return caches.gdn.slots - 1


def _pages_per_row(caches: CacheState) -> int:
    return (caches.kv.pages - 1) // padded_rows(caches)


def empty(model: Model, batch: int, length: int, kv_dtype: str, *, history: bool = True) -> State:
    """One rank's part of a new state. Without a history no penalties can be used."""
    rows = max(batch, model.least_rows)
    shape = model.forward.local.cache_shape(
        pages=rows * -(-length // PAGE) + 1, page_size=PAGE, slots=rows + 1
    )
    caches = CacheState.zeros(
        shape if history else replace(shape, vocab=1),
        kv_dtype=jnp.dtype(kv_dtype),
        window_dtype=model.forward.compute_dtype,
    )
    zero = jnp.zeros((batch,), jnp.int32)
    return State(caches, zero, zero, zero, jnp.zeros((batch,), bool))


def taken(state: State, rows: Array, least_rows: int) -> State:
    """The rows [N] of a state as a new state."""
    caches = state.caches
    padded = jnp.pad(rows, (0, max(least_rows - rows.shape[0], 0)), mode="edge")
    number, pages = padded.shape[0], _pages_per_row(caches)
    slots = jnp.concatenate([jnp.zeros((1,), padded.dtype), 1 + padded])
    own = 1 + padded[:, None] * pages + jnp.arange(pages)
    places = jnp.concatenate([jnp.zeros((1,), own.dtype), own.reshape(-1)])
    kv, gdn, history = caches.kv, caches.gdn, caches.history
    moved = CacheState(
        PagedKV(_take(kv.k, kv.pages, places), _take(kv.v, kv.pages, places), places.shape[0]),
        GDNCache(
            _take(gdn.state, gdn.slots, slots), _take(gdn.window, gdn.slots, slots), number + 1
        ),
        TokenHistory(history.counts[slots]),
        DraftState(),  # nobody drafts here
    )
    return State(
        moved,
        length=state.length[rows],
        last=state.last[rows],
        prompt=state.prompt[rows],
        overflow=state.overflow[rows],
    )


def _take(flat: Array, per_layer: int, places: Array) -> Array:
    """Pages or slots of every layer: [layers * per_layer, ...] -> [layers * N, ...]."""
    stacked = flat.reshape(-1, per_layer, *flat.shape[1:])
    return stacked[:, places].reshape(-1, *flat.shape[1:])


def pad_rows(x: Array, rows: int) -> Array:
    """[B, ...] -> [rows, ...], zeros behind."""
    return jnp.pad(x, [(0, rows - x.shape[0])] + [(0, 0)] * (x.ndim - 1))


def repeat_last_row(x: Array, rows: int) -> Array:
    """[B, ...] -> [rows, ...], the last row again and again."""
    return jnp.concatenate([x, jnp.repeat(x[-1:], rows - x.shape[0], axis=0)])
