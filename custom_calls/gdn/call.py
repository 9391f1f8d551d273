"""Convolution and gated delta rule of new rows: one function for every number of rows and route."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from onecat_jax.custom_calls.dispatch import Candidate, Policy, Route, Target, choose
from onecat_jax.custom_calls.gdn.rows import (
    BLOCK_ROWS,
    GDNRows,
    GDNShape,
    GDNWeights,
    LayerWeights,
    Recurred,
    recur_plain,
)
from onecat_jax.custom_calls.linear import Layer

CPU = "cpu handler"
CHUNKS = "library chunks"
_ROWS_CPU = "onecat_gdn_rows_cpu_v1"
_MAX_DIM, _DIM_MULTIPLE = 256, 16
_WIDTHS = (2, 3, 4)


@dataclass(frozen=True)
class GDNDescriptor:
    """What a route has to know about a call. Shapes are local ones (of one device)."""

    rows: int  # T
    shape: GDNShape
    width: int  # taps of the convolution
    window: Any  # dtype

    def __str__(self) -> str:
        s = self.shape
        heads = f"{s.key_heads} x {s.key_dim} and {s.value_heads} x {s.value_dim} heads"
        return f"{self.rows} rows of {heads}, {jnp.dtype(self.window).name} windows"


def plan(descriptor: GDNDescriptor, policy: Policy = Policy(), *, operator: str = "gdn") -> Route:
    """The route of a call, with the reasons why faster ones declined.

    Args:
      descriptor: what is called.
      policy: which routes may be taken.
      operator: "gdn", "gdn verify" or "gdn commit"; all three have the same routes, the report tells them apart.

    Raises:
      EngineError: in strict mode, when only plain JAX is left.
    """
    return choose(operator, descriptor, ROUTES, policy)


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
) -> Recurred:
    """Convolution with SiLU, norms, gates and recurrence of a batch of sequences.

    On the CPU handler's route (up to 16 rows) a row's bits depend on its sequence alone: not on the batch, its place in
    it, threads, or how the sequence was cut into calls.

    Args:
      qkv: [B, T, C] projected rows.
      gates: [B, T, 2 * Hv] b | a, float32.
      states: [X, Hv, Dv, Dk] float32 of all layers; donate them.
      windows: [X, W-1, C] of all layers; donate them.
      rows: slots, positions and counts. Rows that aren't real give zeros and leave slots alone.
      weights: of all layers of the stack.
      layer: which of them.
      policy: which routes may be taken.

    Returns:
      o [B, T, Hv, Dv] float32, states and windows with the rows' slots replaced.

    Raises:
      EngineError: strict policy and no fast route.
    """
    shape = GDNShape.of(states, qkv.shape[-1])
    descriptor = GDNDescriptor(qkv.shape[1], shape, weights.conv.shape[1], windows.dtype)
    if plan(descriptor, policy).name == CPU:
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


def like(x: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _decline_cpu(d: GDNDescriptor, target: Target) -> str | None:
    if target.platform != "cpu":
        return f"it runs on CPU, the target is {target}"
    if d.rows > BLOCK_ROWS:
        return f"it takes up to {BLOCK_ROWS} rows, there are {d.rows}"
    for dim in (d.shape.key_dim, d.shape.value_dim):
        if dim > _MAX_DIM or dim % _DIM_MULTIPLE:
            return f"head dims must be multiples of {_DIM_MULTIPLE} up to {_MAX_DIM}, one is {dim}"
    if d.width not in _WIDTHS:
        return f"the convolution must have 2 to 4 taps, it has {d.width}"
    return _decline_window(d)


def _decline_window(d: GDNDescriptor) -> str | None:
    if jnp.dtype(d.window) not in (jnp.float32, jnp.float16, jnp.bfloat16):
        return f"windows must be float32, float16 or bfloat16, they are {jnp.dtype(d.window).name}"
    return None


def _decline_chunks(d: GDNDescriptor, target: Target) -> str | None:
    """Matrix products of the library over chunks of 64: plain JAX, and what long inputs are meant to take."""
    return (
        None if d.rows > BLOCK_ROWS else f"it takes more than {BLOCK_ROWS} rows, there are {d.rows}"
    )


ROUTES = (Candidate(CPU, _decline_cpu), Candidate(CHUNKS, _decline_chunks))
