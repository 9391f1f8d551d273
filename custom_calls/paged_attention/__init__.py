"""Attention over a paged key/value cache: writing pages, reading them, and the attention itself."""

from onecat_jax.custom_calls.paged_attention.reference import (
    AttentionRows,
    attend,
    read_tokens,
    write_tokens,
)

__all__ = ["AttentionRows", "attend", "read_tokens", "write_tokens"]
