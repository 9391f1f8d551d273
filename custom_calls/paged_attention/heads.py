"""From a projection's rows to queries, and keys and values in their pages: norm, rotary embedding and writing in one call.

Axes: B batch rows, T new tokens, N features of a row, H query heads, J kv heads, D head dim.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from onecat_jax.custom_calls.dispatch import PLAIN, Policy
from onecat_jax.custom_calls.paged_attention.pages import AttentionRows
from onecat_jax.custom_calls.paged_attention.routes import AttentionDescriptor, plan

_WRITE_HEADS = "onecat_write_heads_gpu_v1"


@dataclass(frozen=True)
class HeadLayout:
    """Where a row's heads lie among its N features."""

    heads: int
    kv_heads: int
    dim: int
    q_stride: int  # from query head to query head; the first is at 0
    k_at: int
    v_at: int


def takes_heads(
    layout: HeadLayout, page: int, dtype: object, cache: object, policy: Policy
) -> bool:
    """Whether `write_heads` has a route for rows of a dtype; without one the caller does its steps in plain JAX.

    Raises nothing in strict mode: those steps are library operators and `write_tokens`, which has routes of its own.
    """
    d = AttentionDescriptor(1, layout.heads, layout.kv_heads, layout.dim, page, dtype, cache)
    relaxed = Policy(policy.backend, False, policy.target)
    return plan("norm, rotary embedding and key/value write", d, relaxed).name != PLAIN


def write_heads(
    qkv: Array,
    k_pages: Array,
    v_pages: Array,
    rows: AttentionRows,
    first_page: Array | int,
    layout: HeadLayout,
    *,
    norms: tuple[Array, Array],
    rotary: tuple[Array, Array],
    eps: float,
    scales: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Queries and keys normed (RMS over the head, float32) and turned, keys and values stored in their pages.

    Its plain form is what models/qwen3_5/attention.py does where `takes_heads` says no; sums have another order there.

    Args:
      qkv: [B, T, N] float16.
      k_pages, v_pages: [X, S, J, D] caches; donate them.
      rows, first_page: as for `write_tokens`.
      layout: of qkv.
      norms: weights of query and key norm [D] float32, stored around 0.
      rotary: cos and sin [B, T, R / 2] float32; dim j pairs with j + R / 2.
      eps: of the norms.
      scales: [2] float32: queries are multiplied by the first, keys divided by it, and values divided by the second.

    Returns:
      queries [B, T, H, D] float16, and both caches, updated in place.
    """
    shape = (*qkv.shape[:2], layout.heads, layout.dim)
    results = (
        *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (k_pages, v_pages)),
        jax.ShapeDtypeStruct(shape, jnp.float16),
    )
    call = jax.ffi.ffi_call(
        _WRITE_HEADS, results, input_output_aliases={0: 0, 1: 1}, vmap_method="sequential"
    )
    where = (rows.table, rows.start, rows.count, jnp.asarray(first_page, jnp.int32))
    factors = jnp.ones(2, jnp.float32) if scales is None else scales
    at = {n: np.int32(getattr(layout, n)) for n in ("q_stride", "k_at", "v_at")}
    operands = (k_pages, v_pages, qkv, *norms, *rotary, factors, *where)
    keys, values, q = call(*operands, eps=np.float32(eps), **at)
    return q, keys, values
