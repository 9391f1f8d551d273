"""Gated delta rule (GDN): one row, a short block of rows, or a long chunked sequence, from any starting state."""

from onecat_jax.custom_calls.gdn.call import GDNDescriptor, plan, recur
from onecat_jax.custom_calls.gdn.reference import (
    CHUNK,
    GDNInputs,
    block,
    causal_conv,
    chunked,
    step,
)
from onecat_jax.custom_calls.gdn.rows import GDNRows, GDNShape, GDNWeights

__all__ = [
    "CHUNK",
    "GDNDescriptor",
    "GDNInputs",
    "GDNRows",
    "GDNShape",
    "GDNWeights",
    "block",
    "causal_conv",
    "chunked",
    "plan",
    "recur",
    "step",
]
