"""Attention over a paged key/value cache: writing pages, and the attention itself."""

from onecat_jax.custom_calls.paged_attention.call import attend, write_tokens
from onecat_jax.custom_calls.paged_attention.heads import HeadLayout, takes_heads, write_heads
from onecat_jax.custom_calls.paged_attention.pages import AttentionRows, read_pages
from onecat_jax.custom_calls.paged_attention.routes import AttentionDescriptor, plan

__all__ = [
    "AttentionDescriptor",
    "AttentionRows",
    "HeadLayout",
    "attend",
    "plan",
    "read_pages",
    "takes_heads",
    "write_heads",
    "write_tokens",
]
