"""Pure JAX paged attention: the oracle of later kernels, and their last route.

A cache is one flat array of pages for all layers, [X, S, J, D], where page id = layer * pages per layer + page. Page 0 of a
layer is padding: rows that don't exist write there and nobody reads it.

The softmax runs over tiles of keys at absolute positions, so the work follows the live length, never the table's width, and
a row's reduction order depends on its own position alone. A tile without visible keys changes no bit.

Axes: B batch rows, T new tokens, H query heads, J kv heads, G = H / J, D head dim, P table pages, S page size, X pages.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

_SHORT_ROWS = (
    16  # up to this many query rows use the decode tile, so that verify rows equal decode rows
)
_SHORT_TILE = 256
_LONG_TILE = 512
_MASKED = -1e30  # finite, so that a row without any visible key stays free of NaN


@partial(jax.tree_util.register_dataclass, data_fields=["table", "start", "count"], meta_fields=[])
@dataclass(frozen=True)
class AttentionRows:
    """Which tokens the query rows are and which pages hold their sequence. Row t of b sits at position start[b] + t."""

    table: Array  # [B, P] int32 page ids inside one layer
    start: Array  # [B] int32 absolute position of the first query row
    count: Array  # [B] int32 query rows that are real; 0 for an empty batch row


def _positions(rows: AttentionRows, width: int) -> tuple[Array, Array]:
    """Absolute positions [B, T] and which rows are real [B, T]."""
    offset = jnp.arange(width, dtype=jnp.int32)
    return rows.start[:, None] + offset, offset < rows.count[:, None]


def write_tokens(pages: Array, new: Array, rows: AttentionRows, layer_page: Array | int) -> Array:
    """Stores new keys (or values) in their pages.

    Args:
      pages: [X, S, J, D] cache; float8 caches saturate at their largest finite value.
      new: [B, T, J, D].
      rows: positions and table; padding rows go to the layer's page 0.
      layer_page: first page id of the layer.

    Returns:
      the cache, updated in place where XLA may (donate it).
    """
    position, real = _positions(rows, new.shape[1])
    size = pages.shape[1]
    page = jnp.take_along_axis(rows.table, position // size, axis=1, mode="clip")
    flat = (layer_page + jnp.where(real, page, 0)) * size + position % size
    tokens = pages.reshape(-1, *pages.shape[2:])
    stored = _to_storage(new, pages.dtype).reshape(-1, *new.shape[2:])
    return tokens.at[flat.reshape(-1)].set(stored, mode="drop").reshape(pages.shape)


def _to_storage(x: Array, dtype: jnp.dtype) -> Array:
    if jnp.finfo(dtype).bits > 8:
        return x.astype(dtype)
    limit = float(jnp.finfo(dtype).max)
    return jnp.clip(x.astype(jnp.float32), -limit, limit).astype(dtype)


def read_tokens(pages: Array, page_ids: Array, dtype: jnp.dtype) -> Array:
    """Gathers whole pages [B, n] -> tokens [B, n * S, J, D] in `dtype`; float8 expands exactly (scale 1)."""
    got = pages[page_ids]
    return got.reshape(got.shape[0], -1, *got.shape[3:]).astype(dtype)


def _tile_pages(size: int, rows: int, table_pages: int) -> int:
    tile = _SHORT_TILE if rows <= _SHORT_ROWS else _LONG_TILE
    return min(max(1, tile // size), table_pages)


def attend(
    q: Array,
    k_pages: Array,
    v_pages: Array,
    rows: AttentionRows,
    layer_page: Array | int,
    *,
    scale: float,
) -> Array:
    """Causal attention of new rows over everything their sequence has in the cache (their own keys included).

    Args:
      q: [B, T, H, D] after norm and rotary embedding.
      k_pages, v_pages: [X, S, J, D], already holding the rows' own keys and values.
      rows: see AttentionRows.
      layer_page: first page id of the layer.
      scale: multiplies the logits.

    Returns:
      [B, T, H, D] float32; exactly zero for rows that aren't real.
    """
    batch, width, heads, dim = q.shape
    size, kv_heads = k_pages.shape[1:3]
    grouped = q.reshape(batch, width, kv_heads, heads // kv_heads, dim).transpose(
        0, 2, 3, 1, 4
    )  # [B, J, G, T, D]
    position, real = _positions(rows, width)
    per_tile = _tile_pages(size, width, rows.table.shape[1])
    span = per_tile * size
    table = jnp.pad(rows.table, ((0, 0), (0, -rows.table.shape[1] % per_tile)))

    def tile(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        top, total, acc = carry
        ids = lax.dynamic_slice_in_dim(table, i * per_tile, per_tile, axis=1) + layer_page
        k = read_tokens(k_pages, ids, q.dtype)
        v = read_tokens(v_pages, ids, q.dtype)
        key_at = i * span + jnp.arange(span, dtype=jnp.int32)
        live = key_at < (rows.start + rows.count)[:, None]  # [B, K]
        v = jnp.where(live[..., None, None], v, 0)  # a stale NaN times zero would still be NaN
        visible = (key_at <= position[..., None]) & real[..., None]  # [B, T, K]
        logits = (
            jnp.einsum("bjgtd,bkjd->bjgtk", grouped, k, preferred_element_type=jnp.float32) * scale
        )
        logits = jnp.where(visible[:, None, None], logits, _MASKED)
        new_top = jnp.maximum(top, logits.max(-1))
        p = jnp.where(visible[:, None, None], jnp.exp(logits - new_top[..., None]), 0)
        fade = jnp.exp(top - new_top)
        pv = jnp.einsum(
            "bjgtk,bkjd->bjgtd", p.astype(q.dtype), v, preferred_element_type=jnp.float32
        )
        return new_top, total * fade + p.sum(-1), acc * fade[..., None] + pv

    tiles = (jnp.max(rows.start + rows.count) + span - 1) // span
    zeros = jnp.zeros(grouped.shape[:-1], jnp.float32)
    init = (zeros + _MASKED, zeros, jnp.zeros(grouped.shape, jnp.float32))
    _, total, acc = lax.fori_loop(0, tiles, tile, init)
    out = acc / jnp.where(total > 0, total, 1.0)[..., None]
    return out.transpose(0, 3, 1, 2, 4).reshape(q.shape)
