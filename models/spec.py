"""What a model says about its checkpoint tensors: one record per canonical name.

The record is the single description behind shape validation, format detection, sharding and conversion.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["linear", "embedding", "vector"]


@dataclass(frozen=True)
class TensorSpec:
    """One checkpoint tensor under its canonical, prefix-free name.

    Attributes:
      shape: logical shape; a linear is [N output, K input], whatever format stores it.
      kind: "linear" may be stored quantised, "embedding" is [V, E] and stays dense, "vector" is everything else (norm
        weights, convolution, gates) and stays dense.
      axes: logical axis name per dimension, None where nothing is ever split.
      required: False for tensors that a checkpoint may leave out as a group (the MTP head).
    """

    shape: tuple[int, ...]
    kind: Kind
    axes: tuple[str | None, ...]
    required: bool = True


TensorSpecs = Mapping[str, TensorSpec]
