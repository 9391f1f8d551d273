"""Registers the compiled handlers with XLA. Needs no GPU and no driver: CUDA targets wait until a CUDA backend starts."""

import functools

import jax

from onecat_jax import _ext


@functools.cache
def register() -> tuple[str, ...]:
    """Registers every handler once per process. Returns the target names."""
    names = []
    for name, platform, stages in _ext.registrations():
        jax.ffi.register_ffi_target(name, stages, platform=platform)
        names.append(name)
    return tuple(names)
