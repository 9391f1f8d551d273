"""Writing new keys and values, and attention over the pages: one function each for every number of rows and route."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.paged_attention.attend import Sight, attend_plain
from onecat_jax.custom_calls.paged_attention.gpu_call import attend_gpu
from onecat_jax.custom_calls.paged_attention.pages import AttentionRows, write_plain
from onecat_jax.custom_calls.paged_attention.routes import (
    CPU,
    GPU,
    LAYOUT_OF_ROUTE,
    AttentionDescriptor,
    plan,
)
from onecat_jax.errors import EngineError

_WRITES = {CPU: "onecat_kv_write_rows_cpu_v1", GPU: "onecat_kv_write_rows_gpu_v1"}
_ATTEND_CPU = "onecat_attend_rows_cpu_v2"
_WHOLE = 2**31 - 1  # a window that every position fits into


def write_tokens(
    k_pages: Array,
    v_pages: Array,
    k: Array,
    v: Array,
    rows: AttentionRows,
    first_page: Array | int,
    *,
    policy: Policy = Policy(),
) -> tuple[Array, Array]:
    """Stores the new tokens' keys and values in their pages, rounded to the cache's dtype; float8 saturates.

    Args:
      k_pages, v_pages: [X, S, J, D] caches; donate them.
      k, v: [B, T, J, D].
      rows: positions and tables.
      first_page: first page id of the layer.
      policy: which routes may be taken.

    Returns:
      both caches, updated in place.

    Raises:
      EngineError: strict policy and no fast route.
    """
    target = _WRITES.get(plan("key/value write", _describe(k, k_pages), policy).name)
    if target is None:
        return write_plain(k_pages, v_pages, k, v, rows, first_page)
    caches = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (k_pages, v_pages))
    call = jax.ffi.ffi_call(
        target, caches, input_output_aliases={0: 0, 1: 1}, vmap_method="sequential"
    )
    keys, values = call(k_pages, v_pages, k, v, *_where(rows, first_page))
    return keys, values


def attend(
    q: Array,
    k_pages: Array,
    v_pages: Array,
    rows: AttentionRows,
    first_page: Array | int,
    *,
    scale: float,
    window: int | None = None,
    causal: bool = True,
    policy: Policy = Policy(),
) -> Array:
    """Attention of new rows over what their sequence has in the cache, their own keys included.

    A row at position p sees the keys at positions t < start + count with t <= p (if causal) and p - t < window (if there
    is one). What lies at other positions, before the window too, never reaches a result: the table may map pages before
    the window to any page, as a ring does.

    On the handlers' routes a row's bits depend on its position and on the keys that it sees alone: not on the batch,
    other rows, how many there are, page numbers, the table's width or threads. On GPUs that takes finite values at the
    positions that some row of the call sees, and calls of up to 16 rows have other bits than longer ones.

    Args:
      q: [B, T, H, D] after norm and rotary embedding.
      k_pages, v_pages: [X, S, J, D], already holding the rows' own keys and values.
      rows: see AttentionRows.
      first_page: first page id of the layer.
      scale: multiplies the logits; above 0.
      window: how many positions a row may look back, its own included; at least 0, and None for all.
      causal: whether a row sees no later row's key.
      policy: which routes may be taken.

    Returns:
      [B, T, H, D] float32; exactly zero for rows that aren't real or see nothing.

    Raises:
      EngineError: a negative window; strict policy and no fast route.
    """
    if window is not None and window < 0:
        raise EngineError(
            f"the attention window is {window}, it must be 0 or more, or None for all"
        )
    route = plan("attention", _describe(q, k_pages), policy).name
    if route in LAYOUT_OF_ROUTE:
        return attend_gpu(
            q,
            k_pages,
            v_pages,
            rows,
            first_page,
            scale=scale,
            window=window,
            causal=causal,
            layout=LAYOUT_OF_ROUTE[route],
        )
    if route != CPU:
        sight = Sight(None if window is None else min(window, _WHOLE), causal)
        return attend_plain(q, k_pages, v_pages, rows, first_page, scale=scale, sight=sight)
    out = jax.ShapeDtypeStruct(q.shape, jnp.float32)
    call = jax.ffi.ffi_call(_ATTEND_CPU, out, vmap_method="sequential")
    back = np.int64(_WHOLE if window is None else min(window, _WHOLE))
    where = _where(rows, first_page)
    return call(
        q, k_pages, v_pages, *where, scale=np.float32(scale), window=back, causal=bool(causal)
    )


def _describe(new: Array, pages: Array) -> AttentionDescriptor:
    """new [B, T, heads, D] over pages [X, S, J, D]."""
    _, tokens, heads, dim = new.shape
    size, kv_heads = pages.shape[1:3]
    return AttentionDescriptor(tokens, heads, kv_heads, dim, size, new.dtype, pages.dtype)


def _where(rows: AttentionRows, first_page: Array | int) -> tuple[Array, ...]:
    return rows.table, rows.start, rows.count, jnp.asarray(first_page, jnp.int32)
