"""What stands behind one canonical tensor, common to all formats."""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np

from onecat_jax.custom_calls.linear.weights import GROUP
from onecat_jax.models.pieces import Cut, Grain, HostTensor, take
from onecat_jax.models.spec import TensorSpec

Format = Literal["dense", "nvfp4", "fp8", "int4"]
Arrays = Callable[[str], np.ndarray]  # stored name -> values in their file dtype, read when used


@dataclass(frozen=True)
class Storage:
    """A format in detail: what is stored, or what a quantisation record says should be.

    Attributes:
      format: one of `Format`, or a record's own word for what isn't implemented.
      scales: of FP8: one per "tensor", "row" or "block".
      group: k per scale of a 4-bit format.
      zeros: whether INT4 has zero points.

    "", 0 and None mean that nothing is said.
    """

    format: str
    scales: str = ""
    group: int = 0
    zeros: bool | None = None

    def __str__(self) -> str:
        words = [self.format]
        if self.scales:
            words.append(f"per {self.scales}")
        if self.group and (self.format, self.group) != ("nvfp4", GROUP):  # which needs no saying
            words.append(f"in groups of {self.group}")
        if self.zeros:
            words.append("with zero points")
        return " ".join(words)

    def agrees(self, said: "Storage") -> bool:
        """Whether everything that a record says is so."""
        return (
            said.format == self.format
            and said.scales in ("", self.scales)
            and said.group in (0, self.group)
            and said.zeros in (None, self.zeros)
        )


@dataclass(frozen=True)
class Source(abc.ABC):
    """The stored tensors behind one canonical name. Made from headers; `settle` and `read` look at values.

    Attributes:
      weight: stored name of the weight or of its codes.
    """

    spec: TensorSpec
    weight: str

    format: ClassVar[Format]

    @property
    @abc.abstractmethod
    def parts(self) -> tuple[str, ...]:
        """All stored names."""

    @property
    @abc.abstractmethod
    def storage(self) -> Storage:
        """The format in detail."""

    @property
    @abc.abstractmethod
    def kind(self) -> type[Any]:
        """The class of the host tensor."""

    @property
    def variant(self) -> str:
        """See `models.tensors.variant_of`."""
        return ""

    @property
    def grain(self) -> Grain | None:
        """Where K may be cut; None for anywhere."""
        return None

    def agrees(self, said: Storage) -> bool:
        """Whether a record that says this describes what is stored."""
        return self.storage.agrees(said)

    def settled(self, arrays: Arrays) -> Self:
        """With what only small tensors' values tell (the order of columns).

        Raises:
          Mismatch: they are no good.
        """
        return self

    @abc.abstractmethod
    def read(self, arrays: Arrays) -> HostTensor:
        """The host tensor, of views where the layout allows it.

        Raises:
          Mismatch: a scale that can't be one, padding that isn't zero, or parts that contradict each other in their values.
        """

    def read_part(self, arrays: Arrays, cut: Cut | None) -> HostTensor:
        """What a rank holds of it: `read` and `take`, without looking at the rest where that saves work.

        Raises: as `read`.
        """
        whole = self.read(arrays)
        return whole if cut is None else take(whole, cut)
