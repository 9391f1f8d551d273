"""The GDN calls on GPUs.

Several thread blocks read the window of one key head; whichever has read it last replaces it. They count themselves in an array
of zeros that the kernel leaves as it was.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from onecat_jax.custom_calls.gdn.reference import CHUNK
from onecat_jax.custom_calls.gdn.rows import (
    Caches,
    GDNRows,
    GDNShape,
    GDNWeights,
    KeptRows,
    Recurred,
)
from onecat_jax.custom_calls.linear import Layer

_ROWS, _VERIFY = "onecat_gdn_rows_gpu_v1", "onecat_gdn_verify_rows_gpu_v1"
_CHUNKS = "onecat_gdn_chunks_gpu_v1"
_VERIFY_KEPT, _COMMIT = "onecat_gdn_verify_kept_rows_gpu_v1", "onecat_gdn_commit_rows_gpu_v1"


def like(x: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _no_norm() -> tuple[Array, float]:
    return jnp.zeros((0, 128), jnp.float32), 0.0


def _output(qkv: Array, states: Array, gated: bool) -> jax.ShapeDtypeStruct:
    shape = (*qkv.shape[:2], *states.shape[1:3])
    return jax.ShapeDtypeStruct(shape, jnp.float16 if gated else jnp.float32)


def _zeros(count: Array, heads: int, layers: int = 1) -> Array:
    """Zeros [layers * B * Hk] that the compiler doesn't know to be zeros: it would fill constants anew before every call."""
    return jnp.tile(jnp.repeat(jnp.minimum(count, 0), heads), layers)


def _operands(
    qkv: Array, gates: Array, norm: Array, rows: GDNRows, weights: GDNWeights, layer: Layer
) -> tuple[Array, ...]:
    small = (weights.conv, weights.a_log, weights.dt_bias, norm)
    where = (jnp.asarray(layer.index, jnp.int32), rows.slots, rows.start, rows.count)
    return (qkv, gates, *small, *where)


def _attributes(layer: Layer, eps: float) -> dict[str, np.generic]:
    return {"mul": np.int32(layer.mul), "add": np.int32(layer.add), "eps": np.float32(eps)}


def recur_gpu(
    qkv: Array,
    gates: Array,
    caches: Caches,
    rows: GDNRows,
    weights: GDNWeights,
    layer: Layer,
    norm: tuple[Array, float] | None = None,
) -> Recurred:
    """`recur` (call.py); with a norm `recur_gated` (gated.py)."""
    states, windows = caches
    weight, eps = norm or _no_norm()
    call = jax.ffi.ffi_call(
        _ROWS,
        (_output(qkv, states, norm is not None), like(states), like(windows)),
        input_output_aliases={11: 1, 12: 2},
        vmap_method="sequential",
    )
    heads = GDNShape.of(states, weights.conv.shape[-1]).key_heads
    operands = _operands(qkv, gates, weight, rows, weights, layer)
    arrivals = _zeros(rows.count, heads)
    out, states, windows = call(*operands, arrivals, states, windows, **_attributes(layer, eps))
    return out, states, windows


def recur_chunks_gpu(
    qkv: Array,
    gates: Array,
    caches: Caches,
    rows: GDNRows,
    weights: GDNWeights,
    layer: Layer,
    layout: str,
    terms: int,
) -> Recurred:
    """`recur` (call.py) of long inputs, by the kernels of a layout, "m8n8k4" or "m16n8k16".

    The call returns its workspace beside the result, which so has a place in the program's memory plan: 66 KB per row with two
    terms for 16 key and 48 value heads.
    """
    states, windows = caches
    results = (_output(qkv, states, False), like(states), like(windows))
    call = jax.ffi.ffi_call(
        _CHUNKS,
        (*results, *_workspace(qkv, states, weights, terms)),
        input_output_aliases={9: 1, 10: 2},
        vmap_method="sequential",
    )
    small = (weights.conv, weights.a_log, weights.dt_bias)
    where = (jnp.asarray(layer.index, jnp.int32), rows.slots, rows.start, rows.count)
    how = {"mul": np.int32(layer.mul), "add": np.int32(layer.add), "terms": np.int32(terms)}
    found = call(qkv, gates, *small, *where, states, windows, **how, layout=layout)
    out, states, windows = found[:3]
    return out, states, windows


def _workspace(
    qkv: Array, states: Array, weights: GDNWeights, terms: int
) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Keys, queries, values, T, P and decays of all chunks."""
    shape = GDNShape.of(states, weights.conv.shape[-1])
    lead = (qkv.shape[0], -(-qkv.shape[1] // CHUNK))
    wide = (*lead, shape.key_heads, terms, CHUNK, shape.key_dim)
    square = (*lead, shape.value_heads, terms, CHUNK, CHUNK)
    values = (*lead, shape.value_heads, CHUNK, shape.value_dim)
    half, single = jnp.float16, jnp.float32
    return (
        jax.ShapeDtypeStruct(wide, half),
        jax.ShapeDtypeStruct(wide, half),
        jax.ShapeDtypeStruct(values, single if terms == 2 else half),
        jax.ShapeDtypeStruct(square, half),
        jax.ShapeDtypeStruct(square, half),
        jax.ShapeDtypeStruct((*lead, shape.value_heads, 3, CHUNK), single),
    )


def verify_gpu(
    qkv: Array, gates: Array, caches: Caches, rows: GDNRows, weights: GDNWeights, layer: Layer
) -> Array:
    """`verify` (rollback.py)."""
    weight, eps = _no_norm()
    call = jax.ffi.ffi_call(_VERIFY, _output(qkv, caches[0], False), vmap_method="sequential")
    operands = _operands(qkv, gates, weight, rows, weights, layer)
    out: Array = call(*operands, *caches, **_attributes(layer, eps))
    return out


def verify_kept_gpu(
    qkv: Array,
    gates: Array,
    caches: Caches,
    kept: KeptRows,
    place: Array | int,
    rows: GDNRows,
    weights: GDNWeights,
    layer: Layer,
    norm: tuple[Array, float],
) -> tuple[Array, KeptRows]:
    """`verify_gated` (gated.py)."""
    call = jax.ffi.ffi_call(
        _VERIFY_KEPT,
        (_output(qkv, caches[0], True), like(kept.qkv), like(kept.gates)),
        input_output_aliases={13: 1, 14: 2},
        vmap_method="sequential",
    )
    operands = _operands(qkv, gates, norm[0], rows, weights, layer)
    into = (jnp.asarray(place, jnp.int32), kept.qkv, kept.gates)
    out, *new = call(*operands, *caches, *into, **_attributes(layer, norm[1]))
    return out, KeptRows(*new)


def commit_gpu(
    kept: KeptRows, caches: Caches, rows: GDNRows, weights: GDNWeights, first_layer: int, slots: int
) -> Caches:
    """`commit` (rollback.py)."""
    states, windows = caches
    call = jax.ffi.ffi_call(
        _COMMIT,
        (like(states), like(windows)),
        input_output_aliases={9: 0, 10: 1},
        vmap_method="sequential",
    )
    heads = GDNShape.of(states, kept.qkv.shape[-1]).key_heads
    small = (weights.conv, weights.a_log, weights.dt_bias)
    where = (rows.slots, rows.start, rows.count)
    arrivals = _zeros(rows.count, heads, weights.conv.shape[0])
    place = {"first_layer": np.int32(first_layer), "slots": np.int32(slots)}
    operands = (kept.qkv, kept.gates, *small, *where, arrivals)
    states, windows = call(*operands, states, windows, **place)
    return states, windows
