"""The engine's device state: explicit pytrees that go into a step and come out of it, donated."""

from onecat_jax.state.caches import CacheShape, CacheState, GDNCache, PagedKV

__all__ = ["CacheShape", "CacheState", "GDNCache", "PagedKV"]
