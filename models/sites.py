"""Checkpoint tensors -> device arrays, one site at a time: what is read together is fused, packed and placed rank by rank.

Every array that is split holds the pieces of all ranks side by side on axis 0, in rank order.
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array

from onecat_jax.custom_calls.linear import (
    Dense,
    DenseTensor,
    HostMatrix,
    Linear,
    LinearRoute,
    build_linear,
)
from onecat_jax.custom_calls.linear.checks import check_tensor
from onecat_jax.errors import CheckpointError
from onecat_jax.models.tensors import Piece, TensorSource
from onecat_jax.sharding import Placement

Tree = TypeVar("Tree")


@dataclass(frozen=True)
class _Rows(Sequence):
    """The siblings of every layer of a site as one rank holds them, fetched when asked for."""

    piece: Piece
    rank: int
    names: Sequence[Sequence[str]]  # per layer

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, at: Any) -> list[HostMatrix]:
        return [self._matrix(name) for name in self.names[at]]

    def _matrix(self, name: str) -> HostMatrix:
        tensor = self.piece(name, self.rank)
        return DenseTensor(tensor) if isinstance(tensor, np.ndarray) else tensor

    def culprit(self, describe: Callable[[str], str]) -> str:
        """The first tensor that can't be packed by itself, and why; "" if all can."""
        for name in (name for names in self.names for name in names):
            try:
                check_tensor(self._matrix(name))
            except ValueError as error:
                return f"{describe(name)}: {error}"
        return ""


@dataclass(frozen=True)
class SiteBuilder:
    """Builds sites of one checkpoint.

    Attributes:
      progress: called with the checkpoint bytes of each finished site.
    """

    source: TensorSource
    route: LinearRoute
    dtype: Any
    placement: Placement
    progress: Callable[[int], None]

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds a tensor."""
        return self.source.kind(name) is not None

    def matrices(self, rows: Sequence[Sequence[str]]) -> Linear:
        """A stack of linears: per layer, the names of siblings that are concatenated along N.

        Raises:
          CheckpointError: their formats differ, or values that no format has.
        """
        names = [name for row in rows for name in row]
        self._check_formats(names)

        def build(piece: Piece, rank: int, device: jax.Device) -> Linear:
            layers = _Rows(piece, rank, rows)
            try:
                return build_linear(layers, route=self.route, dtype=self.dtype, device=device)
            except ValueError as error:
                found = layers.culprit(self.source.describe) or f"{', '.join(rows[0])}: {error}"
                raise CheckpointError(f"the weights can't be packed: {found}") from error

        return self._split(names, build)

    def dense(self, name: str) -> Dense:
        """One matrix that is always stored dense."""
        weight = self.matrices([[name]])
        if not isinstance(weight, Dense):
            raise TypeError(f"{name} must be dense, found {type(weight).__name__}")
        return weight

    def split(self, rows: Sequence[Sequence[str]]) -> Array:
        """Small vectors that ranks share out, float32: per layer concatenated, layers stacked."""

        def build(piece: Piece, rank: int, device: jax.Device) -> Array:
            joined = [np.concatenate([_float32(piece(n, rank)) for n in row]) for row in rows]
            return jax.device_put(np.stack(joined), device)

        return self._split([name for row in rows for name in row], build)

    def replicated(
        self, names: Sequence[str], join: Callable[[list[np.ndarray]], np.ndarray] = np.stack
    ) -> Array:
        """Small tensors, whole on every rank: float32, or int32 of integers."""
        with self.source.site(names) as piece:
            rank = next(rank for rank, _ in self.placement.local_ranks())
            placed = _settled(
                self.placement.replicate(join([_array(piece(n, rank)) for n in names]))
            )
        self._advance(names)
        return placed

    def _split(self, names: Sequence[str], build: Callable[[Piece, int, jax.Device], Tree]) -> Tree:
        """Rank by rank: what a rank needed on the host is gone before the next one starts."""
        with self.source.site(names) as piece:
            ranks = self.placement.local_ranks()
            pieces = [_settled(build(piece, rank, device)) for rank, device in ranks]
        self._advance(names)
        return self.placement.assemble(pieces)

    def _advance(self, names: Sequence[str]) -> None:
        self.progress(sum(map(self.source.nbytes, names)))

    def _check_formats(self, names: Sequence[str]) -> None:
        kinds = {name: kind for name in names if (kind := self.source.kind(name)) is not None}
        if len(set(kinds.values())) > 1:
            shown = {kind: name for name, kind in reversed(kinds.items())}
            listed = ", ".join(f"{name} is {kind.__name__}" for kind, name in shown.items())
            raise CheckpointError(
                f"{listed}; tensors that are multiplied together must be stored in one format: "
                "use an export that quantises all of them or none."
            )


def _array(tensor: Any) -> np.ndarray:
    kind = np.int32 if np.issubdtype(tensor.dtype, np.integer) else np.float32
    return np.asarray(tensor, kind)


def _float32(tensor: Any) -> np.ndarray:
    return np.asarray(tensor, np.float32)


def _settled(placed: Tree) -> Tree:
    """Waits until arrays are on their device and what they were copied from is free.

    JAX lets go of host arrays only when it is called the next time, or in a collection of the youngest objects.
    """
    jax.block_until_ready(placed)
    gc.collect(0)
    return placed
