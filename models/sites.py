"""Checkpoint tensors -> device arrays, a few sites at once: fetched, fused, packed and placed.

A site is what one array is built from: the fused siblings of all layers of a stack, mostly. Every array that is split holds the
pieces of all ranks side by side on axis 0, in rank order.
"""

import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array

from onecat_jax.custom_calls.linear import (
    DenseTensor,
    FP8Tensor,
    HostMatrix,
    INT4Tensor,
    Linear,
    LinearRoute,
    NVFP4Tensor,
    build_linear,
    exact_matrix,
)
from onecat_jax.custom_calls.linear.checks import check_tensor
from onecat_jax.errors import CheckpointError
from onecat_jax.models.spec import TensorSpecs
from onecat_jax.models.tensors import HostTensor, HostTensors, Piece, TensorSource
from onecat_jax.sharding import Placement

Tree = TypeVar("Tree")
Later = Callable[[], Tree]  # waits for what has been started
_FORMATS = {DenseTensor: "dense", NVFP4Tensor: "NVFP4", FP8Tensor: "FP8", INT4Tensor: "INT4"}
_MAX_WORKERS = 4


@dataclass(frozen=True)
class _Rows(Sequence):
    """The siblings of every layer of a site as one rank holds them, fetched when asked for."""

    piece: Piece
    rank: int
    names: Sequence[Sequence[str]]  # per layer
    decoded: bool  # whether quantised matrices are given as dense ones
    done: Callable[[Sequence[str]], None]  # told which tensors the reader is through with

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, at: Any) -> list[HostMatrix]:
        return [self._matrix(self.piece(name, self.rank)) for name in self.names[at]]

    def __iter__(self) -> Iterator[list[HostMatrix]]:
        for at, names in enumerate(self.names):
            yield self[at]
            self.done(names)

    def _matrix(self, tensor: HostTensor) -> HostMatrix:
        if isinstance(tensor, np.ndarray):
            return DenseTensor(tensor)
        if not self.decoded or isinstance(tensor, DenseTensor):
            return tensor
        return DenseTensor(exact_matrix(tensor).astype(np.float32))

    def culprit(self, describe: Callable[[str], str]) -> str:
        """The first tensor that can't be packed by itself, and why; "" if all can."""
        for name in (name for names in self.names for name in names):
            try:
                check_tensor(self._matrix(self.piece(name, self.rank)))
            except ValueError as error:
                return f"{describe(name)}: {error}"
        return ""


@dataclass(frozen=True)
class Sites:
    """Builds sites of one checkpoint for one placement; what it returns waits for its site when it is called.

    Attributes:
      dtype: of dense weights and of the activations that meet them.
      progress: called with checkpoint bytes as they are packed, from several threads.
    """

    source: TensorSource
    route: LinearRoute
    dtype: Any
    placement: Placement
    progress: Callable[[int], None]
    workers: ThreadPoolExecutor
    started: list[Future[Any]] = field(default_factory=list)  # all sites

    def finish(self) -> None:
        """Waits until all that was started is built, or raises what the first site to fail has raised."""
        wait(self.started, return_when=FIRST_EXCEPTION)
        for future in self.started:
            if future.done():
                future.result()

    def matrices(self, rows: Sequence[Sequence[str]], decoded: bool = False) -> Later[Linear]:
        """A stack of linears.

        Args:
          rows: per layer, the names of siblings that are concatenated along N.
          decoded: whether quantised matrices become dense ones.

        Raises (when called):
          CheckpointError: values that no format has.
        """

        def build(piece: Piece, rank: int, device: jax.Device) -> Linear:
            layers = _Rows(piece, rank, rows, decoded, partial(self._advance, rank))
            try:
                return build_linear(layers, route=self.route, dtype=self.dtype, device=device)
            except ValueError as error:
                found = layers.culprit(self.source.describe) or f"{', '.join(rows[0])}: {error}"
                raise CheckpointError(f"the weights can't be packed: {found}") from error

        return self._split([name for row in rows for name in row], build)

    def replicated(
        self, names: Sequence[str], join: Callable[[list[np.ndarray]], np.ndarray] = np.stack
    ) -> Later[Array]:
        """Small tensors, whole on every rank: float32, or int32 of whole numbers."""
        ranks = [rank for rank, _ in self.placement.local_ranks()]

        def build(piece: Piece) -> Array:
            rows = [_array(piece(name, ranks[0])) for name in names]
            placed = _settled(self.placement.replicate(join(rows)))
            for rank in ranks:
                self._advance(rank, names)
            return placed

        return self._start(names, build)

    def vector(self, name: str) -> Later[Array]:
        """One small tensor, whole on every rank."""
        return self.replicated([name], lambda rows: rows[0])

    def split(
        self,
        rows: Sequence[Sequence[str]],
        reorder: Callable[[np.ndarray], np.ndarray] = lambda x: x,
    ) -> Later[Array]:
        """Small tensors that ranks share out, float32: those of a layer are concatenated, layers are stacked."""

        def build(piece: Piece, rank: int, device: jax.Device) -> Array:
            layers = []
            for names in rows:
                parts = [reorder(np.asarray(piece(n, rank), np.float32)) for n in names]
                layers.append(np.concatenate(parts))
                self._advance(rank, names)
            return jax.device_put(np.stack(layers), device)

        return self._split([name for names in rows for name in names], build)

    def _start(self, names: Sequence[str], build: Callable[[Piece], Tree]) -> Later[Tree]:
        """Builds a site on one of the workers; sites are started in this order."""

        def site() -> Tree:
            with self.source.site(names) as piece:
                return build(piece)

        self.source.expect(names)
        self.started.append(self.workers.submit(site))
        return self.started[-1].result

    def _split(
        self, names: Sequence[str], build: Callable[[Piece, int, jax.Device], Tree]
    ) -> Later[Tree]:
        """Builds a site rank by rank: what a rank needed on the host is gone before the next one starts."""

        def all_ranks(piece: Piece) -> Tree:
            ranks = self.placement.local_ranks()
            pieces = [_settled(build(piece, rank, device)) for rank, device in ranks]
            return self.placement.assemble(pieces)

        return self._start(names, all_ranks)

    def _advance(self, rank: int, names: Sequence[str]) -> None:
        """A rank has packed its part of these tensors."""
        ranks = [rank for rank, _ in self.placement.local_ranks()]
        done, count = ranks.index(rank), len(ranks)
        sizes = [self.source.nbytes(name) for name in names]
        self.progress(sum(s * (done + 1) // count - s * done // count for s in sizes))


def source_of(
    tensors: TensorSource | Mapping[str, HostTensor], specs: TensorSpecs, placement: Placement
) -> TensorSource:
    """A source for as many ranks as the placement has; whole host tensors by canonical name become one.

    Raises:
      ValueError: it is cut for another number.
    """
    if isinstance(tensors, Mapping):
        tensors = HostTensors(tensors, specs, placement.size)
    if tensors.ranks != placement.size:
        raise ValueError(f"tensors cut for {tensors.ranks} ranks, {placement.size} devices")
    return tensors


def build_sites(
    start: Callable[[Sites], Later[Tree]],
    source: TensorSource,
    *,
    route: LinearRoute,
    dtype: Any,
    placement: Placement,
    progress: Callable[[int], None],
) -> Tree:
    """What `start` builds, with threads for it.

    Args:
      start: starts all sites and says what becomes of them.
      progress: called from one thread at a time.

    Raises: what the first site to fail has raised; the others are given up.
    """
    with ThreadPoolExecutor(_workers()) as workers:
        sites = Sites(source, route, dtype, placement, _one_by_one(progress), workers)
        try:
            later = start(sites)
            sites.finish()
            return later()
        except BaseException:
            workers.shutdown(wait=False, cancel_futures=True)
            raise


def all_of(cls: Callable[..., Tree], **fields: Callable[[], Any]) -> Later[Tree]:
    """A stack, when all of its fields are there."""
    return lambda: cls(**{name: later() for name, later in fields.items()})


def check_alike(source: TensorSource, names: Sequence[str]) -> None:
    """Refuses formats that a site of these tensors can't hold, before anything is placed.

    Raises:
      CheckpointError: they are stored in different ones.
    """
    kinds = {n: kind for n in names if (kind := source.kind(n)) is not None}
    if len(set(kinds.values())) > 1:
        shown = ", ".join(f"{source.describe(n)} is {_FORMATS[kind]}" for n, kind in kinds.items())
        raise CheckpointError(
            f"{shown}; tensors that are multiplied together must be stored in one format: "
            "use an export that quantises all of them or none."
        )


def _workers() -> int:
    """Threads that read and pack at once: more than a few would only hold more memory."""
    return min(_MAX_WORKERS, os.cpu_count() or 1)


def _one_by_one(progress: Callable[[int], None]) -> Callable[[int], None]:
    """Calls from several threads, in turn."""
    lock = Lock()

    def advance(nbytes: int) -> None:
        with lock:
            progress(nbytes)

    return advance


def _array(tensor: Any) -> np.ndarray:
    whole = tensor.dtype == np.bool_ or np.issubdtype(tensor.dtype, np.integer)
    return np.asarray(tensor, np.int32 if whole else np.float32)


def _settled(placed: Tree) -> Tree:
    """Waits until arrays are on their device and what they were copied from is free.

    JAX lets go of host arrays only when it is called the next time, or in a collection of the youngest objects.
    """
    jax.block_until_ready(placed)
    gc.collect(0)
    return placed
