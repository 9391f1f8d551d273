"""The persistent cache of compiled programs, so that a second start compiles nothing."""

import os
from pathlib import Path

import jax


def cache_directory() -> Path:
    """Where programs are kept: where JAX is told to (JAX_COMPILATION_CACHE_DIR), else a folder under XDG_CACHE_HOME."""
    configured = jax.config.values["jax_compilation_cache_dir"]
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(configured or f"{base}/onecat_jax/xla").expanduser()


def enable_compile_cache() -> None:
    """Turns the cache on for this process.

    Every program is kept, however fast it compiled: JAX's own threshold of one second would leave out most of a small
    model's.
    """
    jax.config.update("jax_compilation_cache_dir", str(cache_directory()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
