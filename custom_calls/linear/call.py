"""y = x W^T: one function for every weight kind and route."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from onecat_jax.custom_calls.dispatch import PLAIN, Policy
from onecat_jax.custom_calls.linear.reference import dot, in_code_order, linear_reference
from onecat_jax.custom_calls.linear.routes import (
    FEW_ROWS,
    LAYOUT_OF_ROUTE,
    LIBRARY,
    LinearDescriptor,
    WeightKind,
    plan,
)
from onecat_jax.custom_calls.linear.weights import FP8, INT4, NVFP4, Dense, Layer, Linear, pick

Packed = NVFP4 | FP8 | INT4

# For more rows, GPUs expand the weight to float16 and use the library's matrix product.
MAX_SMALL_ROWS = 64
MAX_FLOAT16_ROWS = 16  # float16 weights: from here on the library's product is faster

_KINDS: dict[type, WeightKind] = {Dense: "dense", NVFP4: "nvfp4", FP8: "fp8", INT4: "int4"}


def linear(
    x: Array,
    w: Linear,
    layer: Layer = Layer(0),
    *,
    out_dtype: Any = None,
    policy: Policy = Policy(),
) -> Array:
    """Multiplies rows by the transposed weight of one layer.

    Products are summed in float32. A row of zeros gives zeros. On a handler's route one order of summation serves every
    number of rows up to 64 (float16 weights: 16; on CPU: every number), so a row's bits don't depend on its neighbours.

    Args:
      x: [..., K] float32, float16 or bfloat16.
      w: stacked weight [L, N, K].
      layer: which layer of the stack.
      out_dtype: dtype of the result; that of x by default.
      policy: which routes may be taken; must be the one that the weight was built with.

    Returns:
      [..., N].

    Raises:
      ValueError: K of x and w differ, or the weight is packed for another route.
      EngineError: strict policy and no fast route.
    """
    if x.shape[-1] != w.k:
        raise ValueError(f"x has {x.shape[-1]} features per row, the weight takes {w.k}")
    out_dtype = jnp.dtype(out_dtype or x.dtype)
    rows = math.prod(x.shape[:-1])
    if rows == 0:
        return jnp.zeros((*x.shape[:-1], w.n), out_dtype)
    y = _run(_route(x, w, policy), x.reshape(rows, w.k), w, layer, out_dtype)
    return y.astype(out_dtype).reshape(*x.shape[:-1], w.n)


def _route(x: Array, w: Linear, policy: Policy) -> str:
    route = plan(LinearDescriptor(_KINDS[type(w)], w.n, w.k, x.dtype), policy)
    if not isinstance(w, Dense) and w.layout != LAYOUT_OF_ROUTE[route.name]:
        raise ValueError(
            f"the weight is packed as {w.layout!r}, this call needs {LAYOUT_OF_ROUTE[route.name]!r}: {route.explain()}. "
            "Build the weight with the policy and dtype of the call."
        )
    return route.name


def _run(route: str, x: Array, w: Linear, layer: Layer, out_dtype: Any) -> Array:
    """x [M, K] -> [M, N] in a dtype that casts to out_dtype without a second rounding."""
    x = in_code_order(x, w, layer)
    if route == PLAIN:
        return linear_reference(x, w, layer)
    if isinstance(w, Dense):
        return _dense(route, x, w, layer, out_dtype)
    if w.layout == "cpu16":
        return _packed_cpu(x, w, layer)
    return _packed_gpu(x, w, layer, out_dtype)


def _dense(route: str, x: Array, w: Dense, layer: Layer, out_dtype: Any) -> Array:
    if route not in (LIBRARY, FEW_ROWS):
        return _dense_cpu(x, w, layer)
    if route == LIBRARY or x.shape[0] > MAX_FLOAT16_ROWS or w.dtype != x.dtype:
        return _library(x, pick(w.weight, layer).astype(x.dtype), out_dtype)
    return _dense_gpu(x, w, layer, out_dtype)


def _library(x: Array, matrix: Array, out_dtype: Any) -> Array:
    """The library's product; a float16 result is asked for directly, which spares a float32 copy of it.

    The barrier keeps products of the same rows apart: XLA would make one of them, and put their weights side by side each time
    it runs.
    """
    x, matrix = lax.optimization_barrier((x, matrix))
    if out_dtype == x.dtype == jnp.float16:
        return jnp.einsum("mk,nk->mn", x, matrix)
    return dot(x, matrix)


def _call(
    target: str,
    shape: tuple[int, int],
    dtype: Any,
    operands: tuple[Array, ...],
    layer: Layer,
    **attributes: Any,
) -> Array:
    call = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(shape, dtype), vmap_method="sequential")
    index = jnp.asarray(layer.index, jnp.int32)
    return call(*operands, index, mul=np.int32(layer.mul), add=np.int32(layer.add), **attributes)


def _stack(w: Dense, layer: Layer) -> tuple[Array, Layer]:
    """A stack [L, N, K] and the layer's place in it."""
    if isinstance(w.weight, tuple):
        return pick(w.weight, layer)[None], Layer(0)
    return w.weight, layer


def _dense_cpu(x: Array, w: Dense, layer: Layer) -> Array:
    weight, at = _stack(w, layer)
    target, operands = "onecat_dense_linear_cpu_v1", (x.astype(jnp.float32), weight)
    return _call(target, (x.shape[0], w.n), jnp.float32, operands, at)


def _dense_gpu(x: Array, w: Dense, layer: Layer, out_dtype: Any) -> Array:
    weight, at = _stack(w, layer)
    target, shape = "onecat_dense_linear_gpu_v1", (x.shape[0], w.n)
    return _call(target, shape, _gpu_result(out_dtype), (x, weight), at)


def _gpu_result(out_dtype: Any) -> Any:
    return out_dtype if out_dtype in (jnp.float16, jnp.float32) else jnp.dtype(jnp.float32)


def _packed(w: Packed) -> tuple[tuple[Array, ...], dict[str, Any]]:
    """What the handlers of a packed kind are given: operands and attributes."""
    if isinstance(w, NVFP4):
        return (w.codes, w.scales, w.global_scale), {}
    if isinstance(w, FP8):
        return (w.codes, w.scales), {}
    return (w.codes, w.scales, w.zeros), {"group": np.int32(w.group)}


def _packed_cpu(x: Array, w: Packed, layer: Layer) -> Array:
    operands, attributes = _packed(w)
    target, operands = f"onecat_{_KINDS[type(w)]}_linear_cpu_v1", (x.astype(jnp.float32), *operands)
    return _call(target, (x.shape[0], w.n), jnp.float32, operands, layer, **attributes)


def _packed_gpu(x: Array, w: Packed, layer: Layer, out_dtype: Any) -> Array:
    out = _gpu_result(out_dtype)
    operands, attributes = _packed(w)
    kind, attributes = _KINDS[type(w)], {**attributes, "layout": w.layout}
    if x.shape[0] <= MAX_SMALL_ROWS:
        target, shape = f"onecat_{kind}_linear_gpu_v2", (x.shape[0], w.n)
        return _call(target, shape, out, (x, *operands), layer, **attributes)
    target, shape = f"onecat_{kind}_expand_gpu_v2", (w.n, w.k)
    slab = _call(target, shape, jnp.float16, operands, layer, **attributes)
    return _library(x, slab, out)


def look_up(table: Array, ids: Array, policy: Policy = Policy()) -> Array:
    """Rows of a table as float32.

    On CPU a handler takes bfloat16 tables: XLA would widen the whole table for a few of its rows.

    Args:
      table: [N, K] of a floating dtype.
      ids: int32 [...], 0 <= id < N.
      policy: "plain" keeps the handler away.

    Returns: [..., K].
    """
    on_cpu = policy.backend != PLAIN and policy.resolved_target().platform == "cpu"
    if table.dtype != jnp.bfloat16 or not on_cpu:
        return table[ids].astype(jnp.float32)
    rows = jax.ShapeDtypeStruct((*ids.shape, table.shape[1]), jnp.float32)
    return jax.ffi.ffi_call("onecat_look_up_cpu_v1", rows, vmap_method="sequential")(table, ids)
