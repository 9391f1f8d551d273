"""Writing new keys and values, and attention over the pages: one function each for every number of rows and route."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from onecat_jax.custom_calls.dispatch import Candidate, Policy, Route, Target, choose
from onecat_jax.custom_calls.paged_attention.attend import Sight, attend_plain
from onecat_jax.custom_calls.paged_attention.pages import SHORT_ROWS, AttentionRows, write_plain
from onecat_jax.errors import EngineError

CPU = "cpu handler"
TILES = "library tiles"
_WRITE_CPU = "onecat_kv_write_rows_cpu_v1"
_ATTEND_CPU = "onecat_attend_rows_cpu_v2"
_WHOLE = 2**31 - 1  # a window that every position fits into
_MAX_DIM, _DIM_MULTIPLE, _MAX_GROUP = 256, 16, 64
_ROW_TYPES = ("float32", "float16", "bfloat16")
_CACHE_TYPES = (*_ROW_TYPES, "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class AttentionDescriptor:
    """What a route has to know about a call. Shapes are local ones (of one device)."""

    rows: int  # T
    heads: int
    kv_heads: int
    dim: int
    dtype: Any  # of the new rows
    cache: Any  # dtype

    def __str__(self) -> str:
        return (
            f"{self.rows} {jnp.dtype(self.dtype).name} rows of {self.heads} over {self.kv_heads} heads of {self.dim}, "
            f"{jnp.dtype(self.cache).name} cache"
        )


def plan(operator: str, descriptor: AttentionDescriptor, policy: Policy = Policy()) -> Route:
    """The route of "attention" or "key/value write", with the reasons why faster ones declined.

    Raises:
      EngineError: in strict mode, when only plain JAX is left.
    """
    return choose(operator, descriptor, ROUTES, policy)


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
    descriptor = AttentionDescriptor(
        k.shape[1], k.shape[2], k.shape[2], k.shape[3], k.dtype, k_pages.dtype
    )
    if plan("key/value write", descriptor, policy).name != CPU:
        return write_plain(k_pages, v_pages, k, v, rows, first_page)
    caches = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (k_pages, v_pages))
    call = jax.ffi.ffi_call(
        _WRITE_CPU, caches, input_output_aliases={0: 0, 1: 1}, vmap_method="sequential"
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

    On the CPU handler's route a row's bits depend on its position and on the keys that it sees alone: not on the batch,
    other rows, how many there are, page numbers, the table's width or threads.

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
    descriptor = AttentionDescriptor(
        q.shape[1], q.shape[2], k_pages.shape[2], q.shape[3], q.dtype, k_pages.dtype
    )
    if plan("attention", descriptor, policy).name != CPU:
        sight = Sight(None if window is None else min(window, _WHOLE), causal)
        return attend_plain(q, k_pages, v_pages, rows, first_page, scale=scale, sight=sight)
    out = jax.ShapeDtypeStruct(q.shape, jnp.float32)
    call = jax.ffi.ffi_call(_ATTEND_CPU, out, vmap_method="sequential")
    back = np.int64(_WHOLE if window is None else min(window, _WHOLE))
    where = _where(rows, first_page)
    return call(
        q, k_pages, v_pages, *where, scale=np.float32(scale), window=back, causal=bool(causal)
    )


def _where(rows: AttentionRows, first_page: Array | int) -> tuple[Array, ...]:
    return rows.table, rows.start, rows.count, jnp.asarray(first_page, jnp.int32)


def _decline_cpu(d: AttentionDescriptor, target: Target) -> str | None:
    if target.platform != "cpu":
        return f"it runs on CPU, the target is {target}"
    if d.dim > _MAX_DIM or d.dim % _DIM_MULTIPLE:
        return f"the head dim must be a multiple of {_DIM_MULTIPLE} up to {_MAX_DIM}, it is {d.dim}"
    if d.heads > _MAX_GROUP * d.kv_heads:
        return f"it takes up to {_MAX_GROUP} query heads per kv head, there are {d.heads // d.kv_heads}"
    return _decline_types(d)


def _decline_types(d: AttentionDescriptor) -> str | None:
    if (name := jnp.dtype(d.dtype).name) not in _ROW_TYPES:
        return f"new rows must be float32, float16 or bfloat16, they are {name}"
    if (name := jnp.dtype(d.cache).name) not in _CACHE_TYPES:
        return f"the cache must be one of {', '.join(_CACHE_TYPES)}, it is {name}"
    return None


def _decline_tiles(d: AttentionDescriptor, target: Target) -> str | None:
    """Matrix products of the library over tiles of keys: plain JAX, and what long inputs are meant to take."""
    return (
        None if d.rows > SHORT_ROWS else f"it takes more than {SHORT_ROWS} rows, there are {d.rows}"
    )


ROUTES = (Candidate(CPU, _decline_cpu), Candidate(TILES, _decline_tiles))
