"""Reading checkpoints: files, names, formats, and what fits the device.

Imports models, never the engine above it.
"""

from onecat_jax.loading.checkpoint import Checkpoint
from onecat_jax.loading.hub import locate
from onecat_jax.loading.loader import load_tensors

__all__ = ["Checkpoint", "load_tensors", "locate"]
