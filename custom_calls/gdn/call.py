"""Convolution and gated delta rule of new rows: one function for every number of rows and route."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.gdn.gpu_call import like, recur_chunks_gpu, recur_gpu
from onecat_jax.custom_calls.gdn.routes import CPU, GPU, LAYOUT_OF_ROUTE, GDNDescriptor, plan
from onecat_jax.custom_calls.gdn.rows import (
    GDNRows,
    GDNShape,
    GDNWeights,
    LayerWeights,
    Recurred,
    recur_plain,
)
from onecat_jax.custom_calls.linear import Layer

_ROWS_CPU = "onecat_gdn_rows_cpu_v1"


def recur(
    qkv: Array,
    gates: Array,
    states: Array,
    windows: Array,
    rows: GDNRows,
    weights: GDNWeights,
    layer: Layer,
    *,
    policy: Policy = Policy(),
    float16_products: bool = False,
) -> Recurred:
    """Convolution with SiLU, norms, gates and recurrence of a batch of sequences.

    On the handlers' routes (up to 16 rows) a row's bits depend on its sequence alone: not on the batch, its place in it,
    threads, or how the sequence was cut into calls. On the GPU routes of longer inputs that holds for cuts at multiples of
    64 rows.

    Args:
      qkv: [B, T, C] projected rows.
      gates: [B, T, 2 * Hv] b | a, float32.
      states: [X, Hv, Dv, Dk] float32 of all layers; donate them.
      windows: [X, W-1, C] of all layers; donate them.
      rows: slots, positions and counts. Rows that aren't real give zeros and leave slots alone.
      weights: of all layers of the stack.
      layer: which of them.
      policy: which routes may be taken.
      float16_products: let the GPU routes of more than 16 rows round the operands of products to float16, which takes two
        thirds of the time; outputs then err by 5e-4 of the largest one instead of 2e-6.

    Returns:
      o [B, T, Hv, Dv] float32, states and windows with the rows' slots replaced.

    Raises:
      EngineError: strict policy and no fast route.
    """
    shape = GDNShape.of(states, qkv.shape[-1])
    taps = weights.conv.shape[1]
    route = plan(GDNDescriptor(qkv.shape[1], shape, taps, windows.dtype, qkv.dtype), policy).name
    if route == GPU:
        return recur_gpu(qkv, gates, (states, windows), rows, weights, layer)
    if (layout := LAYOUT_OF_ROUTE.get(route)) is not None:
        terms, caches = 1 if float16_products else 2, (states, windows)
        return recur_chunks_gpu(qkv, gates, caches, rows, weights, layer, layout, terms)
    if route == CPU:
        return _recur_cpu(qkv, gates, states, windows, rows, weights, layer)
    return recur_plain(qkv, gates, (states, windows), rows, LayerWeights.of(weights, layer))


def _recur_cpu(
    qkv: Array,
    gates: Array,
    states: Array,
    windows: Array,
    rows: GDNRows,
    weights: GDNWeights,
    layer: Layer,
) -> Recurred:
    shape = jax.ShapeDtypeStruct((*qkv.shape[:2], *states.shape[1:3]), jnp.float32)
    call = jax.ffi.ffi_call(
        _ROWS_CPU,
        (shape, like(states), like(windows)),
        input_output_aliases={9: 1, 10: 2},
        vmap_method="sequential",
    )
    operands = operands_cpu(qkv, gates, states, windows, rows, weights, layer)
    out, states, windows = call(*operands, mul=np.int32(layer.mul), add=np.int32(layer.add))
    return out, states, windows


def operands_cpu(
    qkv: Array,
    gates: Array,
    states: Array,
    windows: Array,
    rows: GDNRows,
    weights: GDNWeights,
    layer: Layer,
) -> tuple[Array, ...]:
    """Operands of the CPU handlers for one layer's new rows, in their order."""
    small = (weights.conv, weights.a_log, weights.dt_bias, jnp.asarray(layer.index, jnp.int32))
    where = (rows.slots, rows.start, rows.count)
    return (qkv.astype(jnp.float32), gates, *small, *where, states, windows)
