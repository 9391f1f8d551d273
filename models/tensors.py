"""Where a model's weights come from: checkpoint tensors, cut for the rank that asks."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from onecat_jax.custom_calls.linear import FP8Tensor, INT4Tensor
from onecat_jax.models.slices import HostTensor, cut_tensor
from onecat_jax.models.spec import TensorSpecs

TensorKind = type[Any]  # the class of a HostTensor
Piece = Callable[[str, int], HostTensor]  # (canonical name, rank) -> what the rank holds of it

__all__ = [
    "HostTensor",
    "HostTensors",
    "Piece",
    "TensorKind",
    "TensorSource",
    "host_bytes",
    "variant_of",
]


class TensorSource(Protocol):
    """Tensors of one checkpoint under canonical names, for a fixed number of ranks.

    What a weight is built from together (the fused siblings of all layers of a stack) is a site. Inside the context of `site`
    its tensors may be asked for, each as often as needed; what the context yields holds no memory after it is left.
    """

    @property
    def ranks(self) -> int:
        """Tensor-parallel ranks that pieces are cut for."""
        ...

    @property
    def names(self) -> Collection[str]:
        """Canonical names of all tensors."""
        ...

    def kind(self, name: str) -> TensorKind | None:
        """How a tensor is stored; None if there is none of that name."""
        ...

    def variant(self, name: str) -> str:
        """What else than the kind must be alike in the layers of a stack (`variant_of`)."""
        ...

    def nbytes(self, name: str) -> int:
        """Stored bytes of a whole tensor."""
        ...

    def describe(self, name: str) -> str:
        """A tensor as people know it, for messages: the name, file and dtype that it is stored under."""
        ...

    def expect(self, names: Sequence[str]) -> None:
        """Says that a site of these tensors will be entered, after those that were announced before."""
        ...

    def site(self, names: Sequence[str]) -> AbstractContextManager[Piece]:
        """Gives access to these tensors. Several threads may be in sites of their own.

        Raises:
          EngineError: a tensor can't be split over that many ranks.
        """
        ...


@dataclass(frozen=True)
class HostTensors:
    """A source over whole tensors on the host, which may be views of mapped files: only what a rank holds is ever read."""

    tensors: Mapping[str, HostTensor]
    specs: TensorSpecs
    ranks: int = 1

    @property
    def names(self) -> Collection[str]:
        return self.tensors.keys()

    def kind(self, name: str) -> TensorKind | None:
        tensor = self.tensors.get(name)
        if tensor is None:
            return None
        return np.ndarray if isinstance(tensor, np.ndarray) else type(tensor)

    def variant(self, name: str) -> str:
        return variant_of(self.tensors[name])

    def nbytes(self, name: str) -> int:
        return host_bytes(self.tensors[name])

    def describe(self, name: str) -> str:
        return name

    def expect(self, names: Sequence[str]) -> None:
        """Nothing: the tensors are there, or mapped."""

    @contextmanager
    def site(self, names: Sequence[str]) -> Iterator[Piece]:
        yield self._piece

    def _piece(self, name: str, rank: int) -> HostTensor:
        return cut_tensor(name, self.tensors[name], self.specs[name], rank, self.ranks)


def host_bytes(tensor: HostTensor) -> int:
    """Bytes of a host tensor's arrays."""
    if isinstance(tensor, np.ndarray):
        return tensor.nbytes
    return sum(part.nbytes for part in vars(tensor).values() if isinstance(part, np.ndarray))


def variant_of(tensor: HostTensor) -> str:
    """Granularity and dtype of the scales, as far as packing can't bring them together without growing the weight."""
    if isinstance(tensor, FP8Tensor):
        return fp8_variant(tensor.scales.ndim == 2)
    if isinstance(tensor, INT4Tensor):
        return int4_variant(tensor.group, tensor.scales.dtype, tensor.order is not None)
    return ""


def fp8_variant(blocked: bool) -> str:
    """Of FP8 with scales that differ along K, or don't."""
    return "blocks" if blocked else ""


def int4_variant(group: int, scales: np.dtype, ordered: bool) -> str:
    """Of INT4 in groups of so many k."""
    return f"{group} {scales.name}{' ordered' if ordered else ''}"
