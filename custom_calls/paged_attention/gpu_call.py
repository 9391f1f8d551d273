"""Attention on GPUs: the calls, and the shape of their workspace.

For few rows each kv head's keys are dealt to a fixed number of splits, tile by tile; partial results of all splits are put
together in a fixed order. How many splits there are is part of the numbers, so it depends on the GPU family and the heads,
never on the batch, the rows or the lengths.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from onecat_jax.custom_calls.paged_attention.pages import SHORT_ROWS, AttentionRows

_ATTEND, _PREFILL = "onecat_attend_rows_gpu_v1", "onecat_attend_prefill_gpu_v1"
# Times kv heads: about the multiprocessors of a V100 and of an H200.
_SPLITS = {"m8n8k4": 80, "m16n8k16": 128}
_MAX_WINDOW = 2**31 - 1


def splits(layout: str, kv_heads: int) -> int:
    """Parts that each sequence's keys are dealt to."""
    return max(1, _SPLITS[layout] // kv_heads)


def workspace(tokens: int, group: int, dim: int) -> int:
    """Rows of partial results per kv head and split: tokens * group, padded to the kernel's blocks."""
    rows = tokens * group
    block = 16 if rows <= 16 else 48 if dim == 256 else 32
    return -(-rows // block) * block


def attend_gpu(
    q: Array,
    k_pages: Array,
    v_pages: Array,
    rows: AttentionRows,
    first_page: Array | int,
    *,
    scale: float,
    window: int | None,
    causal: bool,
    layout: str,
) -> Array:
    """`attend` (call.py) by the kernels of a layout, "m8n8k4" or "m16n8k16".

    Up to SHORT_ROWS rows the call returns its workspace beside the result, which so has a place in the program's memory plan:
    partial results [B, J, splits, rows, D + 2] float32.
    """
    batch, tokens, heads, dim = q.shape
    kv_heads = k_pages.shape[2]
    shapes: tuple[tuple[int, ...], ...] = (q.shape,)
    if tokens <= SHORT_ROWS:
        padded = workspace(tokens, heads // kv_heads, dim)
        parts = (batch, kv_heads, splits(layout, kv_heads), padded)
        shapes = (q.shape, (*parts, dim), (*parts, 2))
    results = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    target = _ATTEND if tokens <= SHORT_ROWS else _PREFILL
    call = jax.ffi.ffi_call(target, results, vmap_method="sequential")
    where = (rows.table, rows.start, rows.count, jnp.asarray(first_page, jnp.int32))
    back = np.int64(_MAX_WINDOW if window is None else min(window, _MAX_WINDOW))
    how = {"scale": np.float32(scale), "window": back, "causal": bool(causal), "layout": layout}
    return call(q, k_pages, v_pages, *where, **how)[0]
