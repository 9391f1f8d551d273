"""Checkpoints in canonical form, as orbax stores them: written by `convert`, restored onto any tensor-parallel degree.

Importing orbax takes about as long as importing JAX, and most checkpoints need none of it. Only `writer`, `reader` and
`restore` import it, and whoever writes or reads such a folder imports those.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onecat_jax.loading.orbax.restore import restore_canonical

__all__ = ["restore_canonical"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("onecat_jax.loading.orbax.restore"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
