"""Gated delta rule (GDN): one row, a short block, or a long chunked sequence, from any state; rows that can be taken back."""

from onecat_jax.custom_calls.gdn.call import recur
from onecat_jax.custom_calls.gdn.gated import OutputNorm, recur_gated, takes_gated, verify_gated
from onecat_jax.custom_calls.gdn.reference import (
    CHUNK,
    GDNInputs,
    block,
    causal_conv,
    chunked,
    step,
)
from onecat_jax.custom_calls.gdn.rollback import commit, verify
from onecat_jax.custom_calls.gdn.routes import GDNDescriptor, plan
from onecat_jax.custom_calls.gdn.rows import GDNRows, GDNShape, GDNWeights, KeptRows

__all__ = [
    "CHUNK",
    "GDNDescriptor",
    "GDNInputs",
    "GDNRows",
    "GDNShape",
    "GDNWeights",
    "KeptRows",
    "OutputNorm",
    "block",
    "causal_conv",
    "chunked",
    "commit",
    "plan",
    "recur",
    "recur_gated",
    "step",
    "takes_gated",
    "verify",
    "verify_gated",
]
