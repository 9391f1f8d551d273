"""Checkpoints of every weight format, each written by the public package that defines the format.

An exporter quantises a transformers model in place, round to nearest, and leaves a checkpoint
folder; its decoder turns the stored tensors of one module back into a matrix by the package's own
functions. Nothing here is used by the engine or by its tests: they read what was written.
"""

from .common import Format

__all__ = ["Format"]
