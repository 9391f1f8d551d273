"""Reading and writing the pages of a key/value cache, in plain JAX.

A cache is one flat array of pages for all layers, [X, S, J, D]; a layer's pages start at `first_page`. Page 0 of a layer is
padding and never read for a request.

Axes: B batch rows, T new tokens, J kv heads, D head dim, P table pages, S page size, X pages.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.custom_calls.rows import LiveRows, row_of

SHORT_ROWS = 16  # up to this many new tokens count as decode (or verify) rows


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AttentionRows:
    """Which tokens the new rows are and which pages hold their sequence. Token t of row b sits at position start[b] + t."""

    table: Array  # [B, P] int32 page ids inside one layer
    start: Array  # [B] int32 absolute position of the first new token
    count: Array  # [B] int32 new tokens that are real; 0 for an empty batch row
    live: LiveRows


def to_storage(x: Array, dtype: jnp.dtype) -> Array:
    """Rounds to the cache's dtype; float8 saturates at its largest finite value."""
    if jnp.finfo(dtype).bits > 8:
        return x.astype(dtype)
    limit = float(jnp.finfo(dtype).max)
    return jnp.clip(x.astype(jnp.float32), -limit, limit).astype(dtype)


def read_pages(pages: Array, page_ids: Array, dtype: jnp.dtype) -> Array:
    """Whole pages [n] -> tokens [n * S, J, D] in `dtype`; float8 expands exactly (scale 1)."""
    got = pages[page_ids]
    return got.reshape(-1, *got.shape[2:]).astype(dtype)


def _write_row_by_token(
    pages: Array, new: Array, table: Array, start: Array, count: Array, first: Array | int
) -> Array:
    """Decode rows: one [J, D] slot per token."""
    size = pages.shape[1]

    def token(t: Array, pages: Array) -> Array:
        at = start + t
        page = first + row_of(table, at // size)
        return lax.dynamic_update_slice(pages, row_of(new, t)[None, None], (page, at % size, 0, 0))

    return lax.fori_loop(0, count, token, pages)


def _write_row_by_page(
    pages: Array, new: Array, table: Array, start: Array, count: Array, first: Array | int
) -> Array:
    """Prefill rows: every touched page is read, merged and written back, wherever the chunk starts in it."""
    size = pages.shape[1]
    offsets = jnp.arange(size, dtype=jnp.int32)

    def page(p: Array, pages: Array) -> Array:
        at = first + row_of(table, p)
        token = p * size + offsets - start  # [S] which new token belongs to each place of the page
        fresh = (token >= 0) & (token < count)
        merged = jnp.where(
            fresh[:, None, None], new[jnp.clip(token, 0, new.shape[0] - 1)], row_of(pages, at)
        )
        return lax.dynamic_update_slice(pages, merged[None], (at, 0, 0, 0))

    return lax.fori_loop(start // size, (start + count + size - 1) // size, page, pages)


def write_plain(
    k_pages: Array, v_pages: Array, k: Array, v: Array, rows: AttentionRows, first_page: Array | int
) -> tuple[Array, Array]:
    """`write_tokens` (call.py) in plain JAX."""
    write = _write_row_by_token if k.shape[1] <= SHORT_ROWS else _write_row_by_page
    k, v = to_storage(k, k_pages.dtype), to_storage(v, v_pages.dtype)

    def row(b: Array, pages: tuple[Array, Array]) -> tuple[Array, Array]:
        where = (row_of(rows.table, b), row_of(rows.start, b), row_of(rows.count, b), first_page)
        return write(pages[0], row_of(k, b), *where), write(pages[1], row_of(v, b), *where)

    return rows.live.each(row, (k_pages, v_pages))
