"""What a model says about its checkpoint tensors: one record per canonical name.

The record is the single description behind shape validation, format detection, sharding and conversion.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Kind = Literal["linear", "embedding", "vector", "index"]


@dataclass(frozen=True)
class Section:
    """Neighbouring indices of one dimension, split over ranks on their own.

    Attributes:
      axis: logical axis name, which the sharding rules know; None where nothing is ever split.
      size: indices.
      units: what they are counted in (heads, features, ids): a rank gets a whole number of them.
    """

    axis: str | None
    size: int
    units: int


Axis = tuple[Section, ...]  # one dimension: its sections, one after the other


@dataclass(frozen=True)
class TensorSpec:
    """One checkpoint tensor under its canonical, prefix-free name.

    Attributes:
      kind: "linear" may be stored quantised, "embedding" is [V, E] and stays dense, "index" holds whole numbers, "vector" is
        everything else (norm weights, convolution, gates) and stays dense.
      axes: what each dimension consists of. Most have one section; query, key and value side by side are three.
      required: False for tensors that a checkpoint may leave out as a group (the MTP head).
    """

    kind: Kind
    axes: tuple[Axis, ...]
    required: bool = True

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Logical shape; a linear is [N output, K input], whatever format stores it."""
        return tuple(sum(section.size for section in axis) for axis in self.axes)


TensorSpecs = Mapping[str, TensorSpec]
