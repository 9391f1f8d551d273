"""Gated delta rule (GDN): one row, a short block of rows, or a long chunked sequence, from any starting state."""

from onecat_jax.custom_calls.gdn.reference import (
    CHUNK,
    GDNInputs,
    block,
    causal_conv,
    chunked,
    step,
)

__all__ = ["CHUNK", "GDNInputs", "block", "causal_conv", "chunked", "step"]
