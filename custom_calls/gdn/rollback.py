"""Verifying rows without replacing a state, and replaying as many of them as were accepted.

A verified row may turn out wrong. `verify` leaves states and windows alone; the caller keeps the rows' inputs (KeptRows)
and `commit` replays the accepted ones, all layers of a stack at once. No state is ever stored per token.
"""

from jax import Array

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.gdn.call import GDNDescriptor, plan
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
    descriptor = GDNDescriptor(qkv.shape[1], shape, weights.conv.shape[1], windows.dtype)
    plan(descriptor, Policy("plain", target=policy.target), operator="gdn verify")
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
    descriptor = GDNDescriptor(kept.qkv.shape[2], shape, weights.conv.shape[1], windows.dtype)
    plan(descriptor, Policy("plain", target=policy.target), operator="gdn commit")
    return commit_plain(kept, (states, windows), rows, weights, first_layer, slots)
