"""The persistent cache of compiled programs, so that a second start compiles nothing."""

import os
from pathlib import Path

import jax


def default_directory() -> Path:
    """Where programs are kept unless JAX_COMPILATION_CACHE_DIR says otherwise; follows XDG_CACHE_HOME."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "onecat_jax" / "xla"


def enable_compile_cache() -> Path:
    """Turns the cache on for this process and returns its directory.

    A directory that the user configured in JAX stays. Every program is kept, however fast it compiled: JAX's own threshold of
    one second would leave out most of a small model's.
    """
    configured = jax.config.values["jax_compilation_cache_dir"]
    directory = Path(configured) if configured else default_directory()
    if not configured:
        jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return directory
