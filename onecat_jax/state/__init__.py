"""The engine's device state: explicit pytrees that go into a step and come out of it, donated."""

from onecat_jax.state.caches import CacheShape, CacheState, GDNCache, PagedKV
from onecat_jax.state.copy import copy_slot
from onecat_jax.state.history import FedTokens, TokenHistory, record

__all__ = [
    "CacheShape",
    "CacheState",
    "FedTokens",
    "GDNCache",
    "PagedKV",
    "TokenHistory",
    "copy_slot",
    "record",
]
