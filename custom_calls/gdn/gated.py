"""The recurrence with what stands around it: rows as one projection leaves them, norm and gate of the outputs, kept rows.

On GPUs this is one kernel, where splitting the projection, keeping its rows and the norm would be launches of their own.
Axes: N features of a row: C channels q | k | v, then z of Hv * Dv, perhaps more.
"""

from dataclasses import dataclass

from jax import Array

from onecat_jax.custom_calls.dispatch import PLAIN, Policy
from onecat_jax.custom_calls.gdn.gpu_call import recur_gpu, verify_kept_gpu
from onecat_jax.custom_calls.gdn.routes import GDNDescriptor, plan
from onecat_jax.custom_calls.gdn.rows import GDNRows, GDNShape, GDNWeights, KeptRows, Recurred
from onecat_jax.custom_calls.linear import Layer


@dataclass(frozen=True)
class OutputNorm:
    """RMS norm over Dv, times silu(z)."""

    weight: Array  # [L, Dv] float32 of all layers of a stack; multiplies directly
    eps: float


def takes_gated(
    projected: Array, states: Array, windows: Array, weights: GDNWeights, policy: Policy
) -> bool:
    """Whether `recur_gated` and `verify_gated` have a route; without one the caller does their steps in plain JAX.

    Raises nothing in strict mode: those steps are library operators, and `recur` and `verify`, which have routes of their own.
    """
    shape = GDNShape.of(states, weights.conv.shape[-1])
    taps, rows = weights.conv.shape[1], projected.shape[1]
    descriptor = GDNDescriptor(rows, shape, taps, windows.dtype, projected.dtype)
    relaxed = Policy(policy.backend, False, policy.target)
    return plan(descriptor, relaxed, operator="gdn and gated norm").name != PLAIN


def recur_gated(
    projected: Array,
    gates: Array,
    states: Array,
    windows: Array,
    rows: GDNRows,
    weights: GDNWeights,
    layer: Layer,
    norm: OutputNorm,
) -> Recurred:
    """`recur`, its outputs normed and gated.

    Its plain form is what models/qwen3_5/gdn.py does where `takes_gated` says no; the norm's sums have another order there.

    Args:
      projected: [B, T, N] float16.
      gates, states, windows, rows, weights, layer: as for `recur`.
      norm: of the outputs.

    Returns:
      y [B, T, Hv, Dv] float16, states and windows, updated in place. Rows that aren't real give zeros.
    """
    caches = (states, windows)
    return recur_gpu(projected, gates, caches, rows, weights, layer, (norm.weight, norm.eps))


def verify_gated(
    projected: Array,
    gates: Array,
    states: Array,
    windows: Array,
    kept: KeptRows,
    place: Array | int,
    rows: GDNRows,
    weights: GDNWeights,
    layer: Layer,
    norm: OutputNorm,
) -> tuple[Array, KeptRows]:
    """`verify`, its outputs normed and gated, its real rows kept.

    Args:
      projected: [B, T, N] float16.
      gates, states, windows, rows, weights, layer: as for `verify`.
      kept: of all GDN layers of the model; donate them.
      place: which of them this layer is.
      norm: of the outputs.

    Returns:
      y [B, T, Hv, Dv] float16, and the kept rows with this layer's; what belongs to no real row stays as it was.
    """
    where = (kept, place, rows, weights, layer, (norm.weight, norm.eps))
    return verify_kept_gpu(projected, gates, (states, windows), *where)
