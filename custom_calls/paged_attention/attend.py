"""Paged attention in plain JAX: the oracle of the handlers, and the last route.

The softmax runs over tiles of keys at absolute positions, row after row, so the work follows each row's live length, never
the table's width, and a row's reduction order depends on its own position alone. A tile without visible keys changes no bit,
so tiles before the first key that any row may see aren't visited.

Axes: B batch rows, T new tokens, H query heads, J kv heads, G = H / J, D head dim, K keys of a tile.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.custom_calls.paged_attention.pages import SHORT_ROWS, AttentionRows, read_pages
from onecat_jax.custom_calls.rows import put_row, row_of

_SHORT_TILE = 256  # keys per tile for decode and verify rows, so that verify rows equal decode rows
_LONG_TILE = 512
# Without it, newer GPUs would multiply float32 in TF32.
_EXACT = {"preferred_element_type": jnp.float32, "precision": lax.Precision.HIGHEST}
_MASKED = -1e30  # finite, so that a row without any visible key stays free of NaN

# Running maximum [J, G, T], sum [J, G, T], weighted values [J, G, T, D].
_Softmax = tuple[Array, Array, Array]


@dataclass(frozen=True)
class Sight:
    """Which keys a row sees, besides those that aren't written yet."""

    window: int | None  # a row at position p sees positions above p - window; None for all
    causal: bool  # and those up to p

    def first(self, start: Array) -> Array | int:
        """First position that any row from position `start` on may see; may lie behind the row itself when window is 0."""
        return 0 if self.window is None else jnp.maximum(start - self.window + 1, 0)

    def of(self, query_at: Array, key_at: Array, end: Array) -> Array:
        """[T, K] bool for rows at positions query_at [T] and keys at key_at [K]; the sequence has `end` tokens."""
        if self.causal:
            visible = key_at <= query_at[:, None]
        else:
            visible = jnp.broadcast_to(key_at < end, (query_at.shape[0], key_at.shape[0]))
        if self.window is None:
            return visible
        return visible & (query_at[:, None] - key_at < self.window)


def _tile_pages(page_size: int, rows: int, table_pages: int) -> int:
    tile = _SHORT_TILE if rows <= SHORT_ROWS else _LONG_TILE
    return min(max(1, tile // page_size), table_pages)


def _add_tile(
    carry: _Softmax, q: Array, k: Array, v: Array, visible: Array, scale: float
) -> _Softmax:
    """One tile of the online softmax: q [J, G, T, D], k and v [K, J, D], visible [T, K]."""
    top, total, acc = carry
    logits = jnp.einsum("jgtd,kjd->jgtk", q, k, **_EXACT) * scale
    logits = jnp.where(visible, logits, _MASKED)
    new_top = jnp.maximum(top, logits.max(-1))
    p = jnp.where(visible, jnp.exp(logits - new_top[..., None]), 0)
    fade = jnp.exp(top - new_top)
    pv = jnp.einsum("jgtk,kjd->jgtd", p.astype(q.dtype), v, **_EXACT)
    return new_top, total * fade + p.sum(-1), acc * fade[..., None] + pv


def _attend_row(
    q: Array,
    k_pages: Array,
    v_pages: Array,
    table: Array,
    start: Array,
    count: Array,
    first: Array | int,
    scale: float,
    sight: Sight,
) -> Array:
    """q [T, H, D] of one sequence -> [T, H, D] float32."""
    width, heads, dim = q.shape
    size, kv_heads = k_pages.shape[1:3]
    grouped = q.reshape(width, kv_heads, heads // kv_heads, dim).transpose(1, 2, 0, 3)
    per_tile = _tile_pages(size, width, table.shape[0])
    span = per_tile * size
    table = jnp.pad(table, (0, -table.shape[0] % per_tile))
    query_at = start + jnp.arange(width, dtype=jnp.int32)
    real = jnp.arange(width) < count

    def tile(i: Array, carry: _Softmax) -> _Softmax:
        ids = lax.dynamic_slice_in_dim(table, i * per_tile, per_tile) + first
        key_at = i * span + jnp.arange(span, dtype=jnp.int32)
        visible = sight.of(query_at, key_at, start + count) & real[:, None]
        stale = ~visible.any(0)  # a NaN left there times zero would still be NaN
        k = read_pages(k_pages, ids, q.dtype)
        v = jnp.where(stale[:, None, None], 0, read_pages(v_pages, ids, q.dtype))
        return _add_tile(carry, grouped, k, v, visible, scale)

    zeros = jnp.zeros(grouped.shape[:-1], jnp.float32)
    init = (zeros + _MASKED, zeros, jnp.zeros(grouped.shape, jnp.float32))
    tiles = (sight.first(start) // span, (start + count + span - 1) // span)
    _, total, acc = lax.fori_loop(*tiles, tile, init)
    out = acc / jnp.where(total > 0, total, 1.0)[..., None]
    return out.transpose(2, 0, 1, 3).reshape(q.shape)


def attend_plain(
    q: Array,
    k_pages: Array,
    v_pages: Array,
    rows: AttentionRows,
    first_page: Array | int,
    *,
    scale: float,
    sight: Sight,
) -> Array:
    """`attend` (call.py) in plain JAX."""

    def row(b: Array, out: Array) -> Array:
        where = (row_of(rows.table, b), row_of(rows.start, b), row_of(rows.count, b), first_page)
        return put_row(out, _attend_row(row_of(q, b), k_pages, v_pages, *where, scale, sight), b)

    return rows.live.each(row, jnp.zeros(q.shape, jnp.float32))
