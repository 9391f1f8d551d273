"""The persistent cache of compiled programs, so that a second start compiles nothing."""

import os
import warnings
from pathlib import Path

import jax


def cache_directory() -> Path | None:
    """Where programs are kept: where JAX is told to (JAX_COMPILATION_CACHE_DIR), else a folder under XDG_CACHE_HOME.

    None if there is no home directory to put it in.
    """
    configured = jax.config.values["jax_compilation_cache_dir"]
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(configured or f"{base}/onecat_jax/xla").expanduser()
    except RuntimeError:  # a user without a home directory
        return None


def enable_compile_cache() -> None:
    """Turns the cache on for this process; with a warning instead if its folder can't be made.

    Every program is kept, however fast it compiled: JAX's own threshold of one second would leave out most of a small
    model's.
    """
    if jax.config.values["jax_compilation_cache_dir"] is None:
        folder = cache_directory()
        try:
            if folder is None:
                raise FileNotFoundError("there is no home directory")
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            warnings.warn(
                f"compiled programs can't be kept ({error}), so every start compiles them again: set "
                "JAX_COMPILATION_CACHE_DIR to a folder that can be written",
                stacklevel=3,
            )
            return
        jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
