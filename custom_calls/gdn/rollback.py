"""Verifying rows without replacing a state, and replaying as many of them as were accepted.

A verified row may turn out wrong. `verify` leaves states and windows alone; the caller keeps the rows' inputs (KeptRows)
and `commit` replays the accepted ones, all layers of a stack at once. No state is ever stored per token.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.gdn.call import operands_cpu
from onecat_jax.custom_calls.gdn.gpu_call import commit_gpu, like, verify_gpu
from onecat_jax.custom_calls.gdn.routes import CPU, GPU, GDNDescriptor, plan
from onecat_jax.custom_calls.gdn.rows import (
    Caches,
    GDNRows,
    GDNShape,
    GDNWeights,
    KeptRows,
    LayerWeights,
    commit_plain,
    verify_plain,
)
from onecat_jax.custom_calls.linear import Layer

_VERIFY_CPU = "onecat_gdn_verify_rows_cpu_v1"
_COMMIT_CPU = "onecat_gdn_commit_rows_cpu_v1"


def verify(
    qkv: Array,
    gates: Array,
    states: Array,
    windows: Array,
    rows: GDNRows,
    weights: GDNWeights,
    layer: Layer,
    *,
    policy: Policy = Policy(),
) -> Array:
    """The outputs of `recur`; states and windows are only read.

    Args:
      qkv: [B, T, C] projected rows.
      gates: [B, T, 2 * Hv] b | a, float32.
      states: [X, Hv, Dv, Dk] float32 of all layers.
      windows: [X, W-1, C] of all layers.
      rows: slots, positions and counts. Rows that aren't real give zeros.
      weights: of all layers of the stack.
      layer: which of them.
      policy: which routes may be taken.

    Returns:
      o [B, T, Hv, Dv] float32.

    Raises:
      EngineError: strict policy and no fast route.
    """
    shape = GDNShape.of(states, qkv.shape[-1])
    taps = weights.conv.shape[1]
    descriptor = GDNDescriptor(qkv.shape[1], shape, taps, windows.dtype, qkv.dtype)
    route = plan(descriptor, policy, operator="gdn verify").name
    if route == GPU:
        return verify_gpu(qkv, gates, (states, windows), rows, weights, layer)
    if route == CPU:
        shape_out = jax.ShapeDtypeStruct((*qkv.shape[:2], *states.shape[1:3]), jnp.float32)
        call = jax.ffi.ffi_call(_VERIFY_CPU, shape_out, vmap_method="sequential")
        operands = operands_cpu(qkv, gates, states, windows, rows, weights, layer)
        out: Array = call(*operands, mul=np.int32(layer.mul), add=np.int32(layer.add))
        return out
    return verify_plain(qkv, gates, (states, windows), rows, LayerWeights.of(weights, layer))


def commit(
    kept: KeptRows,
    states: Array,
    windows: Array,
    rows: GDNRows,
    weights: GDNWeights,
    *,
    first_layer: int,
    slots: int,
    policy: Policy = Policy(),
) -> Caches:
    """Replays the first `rows.count` kept rows in every layer of a stack.

    `verify` followed by `commit` of n rows leaves what n calls of `recur` with one row each leave.

    Args:
      kept: rows of all GDN layers of the model, as `verify` saw them.
      states: [X, Hv, Dv, Dk] float32 of all layers, X = layers * slots; donate them.
      windows: [X, W-1, C] of all layers; donate them.
      rows: slots inside a layer (0 .. slots-1), positions of the first kept row, how many rows to replay. Rows with count
        0 leave everything alone, as do slots that no row names.
      weights: of the stack's layers.
      first_layer: the place of the stack's first layer among all GDN layers.
      slots: slots per layer.
      policy: which routes may be taken.

    Returns:
      states and windows with the rows' slots of the stack's layers replaced.

    Raises:
      EngineError: strict policy and no fast route.
    """
    shape = GDNShape.of(states, kept.qkv.shape[-1])
    taps, kept_rows = weights.conv.shape[1], kept.qkv.shape[2]
    descriptor = GDNDescriptor(kept_rows, shape, taps, windows.dtype, kept.qkv.dtype)
    route = plan(descriptor, policy, operator="gdn commit").name
    if route == GPU:
        return commit_gpu(kept, (states, windows), rows, weights, first_layer, slots)
    if route == CPU:
        return _commit_cpu(kept, states, windows, rows, weights, first_layer, slots)
    return commit_plain(kept, (states, windows), rows, weights, first_layer, slots)


def _commit_cpu(
    kept: KeptRows,
    states: Array,
    windows: Array,
    rows: GDNRows,
    weights: GDNWeights,
    first_layer: int,
    slots: int,
) -> Caches:
    call = jax.ffi.ffi_call(
        _COMMIT_CPU,
        (like(states), like(windows)),
        input_output_aliases={8: 0, 9: 1},
        vmap_method="sequential",
    )
    kept_rows = (kept.qkv.astype(windows.dtype), kept.gates)
    small = (weights.conv, weights.a_log, weights.dt_bias)
    where = (rows.slots, rows.start, rows.count)
    place = {"first_layer": np.int32(first_layer), "slots": np.int32(slots)}
    states, windows = call(*kept_rows, *small, *where, states, windows, **place)
    return states, windows
