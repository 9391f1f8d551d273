"""The engine's device state: explicit pytrees that go into a step and come out of it, donated."""

from onecat_jax.state.caches import CacheShape, CacheState, GDNCache
from onecat_jax.state.copy import copy_slot
from onecat_jax.state.drafts import NO_DRAFTS, DraftShape, DraftState, DraftWindow
from onecat_jax.state.history import FedTokens, TokenHistory, record
from onecat_jax.state.pages import PagedKV

__all__ = [
    "NO_DRAFTS",
    "CacheShape",
    "CacheState",
    "DraftShape",
    "DraftState",
    "DraftWindow",
    "FedTokens",
    "GDNCache",
    "PagedKV",
    "TokenHistory",
    "copy_slot",
    "record",
]
