"""A converted checkpoint as the source of a model's weights."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from onecat_jax.custom_calls.linear import DenseTensor, NVFP4Tensor
from onecat_jax.errors import CheckpointError
from onecat_jax.loading.dtypes import DTYPES
from onecat_jax.loading.formats import Mismatch, Source, Stored
from onecat_jax.loading.formats.nvfp4 import check_block_scales
from onecat_jax.loading.orbax.canonical import CanonicalArray, arrays_of, tensor_of
from onecat_jax.loading.orbax.checkpoint import OrbaxCheckpoint
from onecat_jax.loading.orbax.manifest import AGAIN, MANIFEST
from onecat_jax.models.pieces import NVFP4_GRAIN
from onecat_jax.models.slices import HostTensor, check_cut
from onecat_jax.models.tensors import Piece, TensorKind

if TYPE_CHECKING:
    from onecat_jax.loading.orbax.reader import Pending


@dataclass(frozen=True)
class OrbaxTensors:
    """A `TensorSource` that reads from disk what a rank asks for, when it asks, and nothing else."""

    checkpoint: OrbaxCheckpoint
    sources: Mapping[str, Source]
    arrays: Mapping[str, list[CanonicalArray]]  # of every tensor
    ranks: int = 1

    @property
    def names(self) -> Collection[str]:
        return self.sources.keys()

    def kind(self, name: str) -> TensorKind | None:
        source = self.sources.get(name)
        if source is None:
            return None
        if source.format == "nvfp4":
            return NVFP4Tensor
        return DenseTensor if source.spec.kind == "linear" else np.ndarray

    def variant(self, name: str) -> str:
        return self.sources[name].variant

    def nbytes(self, name: str) -> int:
        return sum(array.nbytes for array in self.arrays[name] if array.axes)

    def describe(self, name: str) -> str:
        stored = self.sources[name].weight
        return str(Stored(stored, self.checkpoint.tensors[stored]))

    def expect(self, names: Sequence[str]) -> None:
        """Nothing: a site reads ahead by itself."""

    @contextmanager
    def site(self, names: Sequence[str]) -> Iterator[Piece]:
        """While a piece is packed, the one that is likely asked for next (the next name, the same rank) is on its way."""
        after = dict(pairwise(names))
        ahead: dict[tuple[str, int], list[Pending]] = {}

        def piece(name: str, rank: int) -> HostTensor:
            started = ahead.pop((name, rank), None) or self._start(name, rank)
            ahead.clear()
            if (following := after.get(name)) is not None:
                ahead[following, rank] = self._start(following, rank)
            return self._finish(name, started)

        yield piece
        ahead.clear()

    def _start(self, name: str, rank: int) -> "list[Pending]":
        """Begins to read a rank's part of every array of a tensor."""
        source = self.sources[name]
        if source.format == "nvfp4":
            check_cut(name, source.spec, self.ranks, NVFP4_GRAIN)
        return [
            self.checkpoint.start(array.name, array.extent(rank, self.ranks))
            for array in self.arrays[name]
        ]

    def _finish(self, name: str, started: "list[Pending]") -> HostTensor:
        values = [wait() for wait in started]
        tensor = tensor_of(self.sources[name].spec, self.arrays[name], values)
        if isinstance(tensor, NVFP4Tensor):
            self._check_scales(name, tensor)
        return tensor

    def _check_scales(self, name: str, tensor: NVFP4Tensor) -> None:
        """They were good when they were written."""
        try:
            check_block_scales(f"{name} (scales)", tensor.scales)
        except Mismatch as mismatch:
            raise CheckpointError(f"{self.checkpoint.root}: {mismatch}; {AGAIN}") from mismatch
        if not (np.isfinite(tensor.global_scale) and tensor.global_scale > 0):
            raise CheckpointError(
                f"{self.checkpoint.root}: the global scale of {name} is {tensor.global_scale}, a finite number above zero is "
                f"needed; {AGAIN}"
            )


def canonical_arrays(
    checkpoint: OrbaxCheckpoint, sources: Mapping[str, Source]
) -> dict[str, list[CanonicalArray]]:
    """The arrays of every tensor, which the manifest must list just so.

    Raises:
      CheckpointError: it doesn't.
    """
    found = {}
    for name, source in sources.items():
        dtype = DTYPES[checkpoint.tensors[source.weight].dtype]
        arrays = arrays_of(name, source.spec, source.format, dtype)
        wanted = {array.name: _shown(array.dtype.name, array.shape) for array in arrays}
        records = checkpoint.manifest.tensors[source.weight].arrays
        listed = {array: _shown(record.dtype, record.shape) for array, record in records.items()}
        for array in sorted(wanted.keys() | listed.keys()):
            if wanted.get(array) != listed.get(array):
                raise CheckpointError(
                    f"{checkpoint.root / MANIFEST} lists array {array} of {name} as {listed.get(array, 'missing')}, needed "
                    f"is {wanted.get(array, 'none of that name')}; {AGAIN}"
                )
        found[name] = arrays
    return found


def _shown(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype} {list(shape)}"
