"""Probes for benches: a device clock and a copy, as custom calls."""

from onecat_jax.custom_calls.probes.call import copy, stamp

__all__ = ["copy", "stamp"]
