"""Attention over a paged key/value cache: writing pages, and the attention itself."""

from onecat_jax.custom_calls.paged_attention.attend import attend
from onecat_jax.custom_calls.paged_attention.pages import AttentionRows, read_pages, write_tokens

__all__ = ["AttentionRows", "attend", "read_pages", "write_tokens"]
