"""Where a model's weights come from: checkpoint tensors, cut for the rank that asks."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from onecat_jax.custom_calls.linear import DenseTensor, NVFP4Tensor
from onecat_jax.models.slices import HostTensor, cut_tensor
from onecat_jax.models.spec import TensorSpecs

TensorKind = type[DenseTensor] | type[NVFP4Tensor] | type[np.ndarray]
Piece = Callable[[str, int], HostTensor]  # (canonical name, rank) -> what the rank holds of it

__all__ = ["HostTensor", "HostTensors", "Piece", "TensorKind", "TensorSource", "host_bytes"]


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

    def nbytes(self, name: str) -> int:
        """Stored bytes of a whole tensor."""
        ...

    def site(self, names: Sequence[str]) -> AbstractContextManager[Piece]:
        """Gives access to these tensors.

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

    def nbytes(self, name: str) -> int:
        return host_bytes(self.tensors[name])

    @contextmanager
    def site(self, names: Sequence[str]) -> Iterator[Piece]:
        yield self._piece

    def _piece(self, name: str, rank: int) -> HostTensor:
        return cut_tensor(name, self.tensors[name], self.specs[name], rank, self.ranks)


def host_bytes(tensor: HostTensor) -> int:
    """Bytes of a host tensor, without its global scale."""
    if isinstance(tensor, np.ndarray):
        return tensor.nbytes
    if isinstance(tensor, DenseTensor):
        return tensor.weight.nbytes
    return tensor.codes.nbytes + tensor.scales.nbytes
