"""A checkpoint of safetensors as the source of a model's weights: what a rank asks for is read when it asks."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

from onecat_jax.errors import CheckpointError
from onecat_jax.loading.checkpoint import Checkpoint
from onecat_jax.loading.formats import Mismatch, Source
from onecat_jax.models.slices import HostTensor, check_cut, cut_of
from onecat_jax.models.tensors import Piece, TensorKind

_AHEAD = 128 << 20  # bytes of a site that are fetched before they are needed


@dataclass(frozen=True)
class CheckpointTensors:
    """A `TensorSource`. Formats stored row by row are views; others are transposed piece by piece, and let go with it."""

    checkpoint: Checkpoint
    sources: Mapping[str, Source]
    ranks: int = 1

    @property
    def names(self) -> Collection[str]:
        return self.sources.keys()

    def kind(self, name: str) -> TensorKind | None:
        source = self.sources.get(name)
        return None if source is None else source.kind

    def variant(self, name: str) -> str:
        return self.sources[name].variant

    def nbytes(self, name: str) -> int:
        return sum(self.checkpoint.tensors[part].nbytes for part in self.sources[name].parts)

    @contextmanager
    def site(self, names: Sequence[str]) -> Iterator[Piece]:
        """While a piece is packed, those that follow are on their way from disk."""
        ahead = _Ahead(self, names)

        def piece(name: str, rank: int) -> HostTensor:
            ahead.reached(name)
            return self._piece(name, rank)

        yield piece

    def _piece(self, name: str, rank: int) -> HostTensor:
        source = self.sources[name]
        cut = cut_of(source.spec, rank, self.ranks)
        if cut is not None:
            check_cut(name, source.spec, self.ranks, source.grain)
        try:
            return source.read_part(self.checkpoint.array, cut)
        except Mismatch as mismatch:
            raise CheckpointError(f"{self.checkpoint.root}: {mismatch}") from mismatch


class _Ahead:
    """Has the system fetch a site's tensors in order, so far beyond the one that is being read."""

    def __init__(self, tensors: CheckpointTensors, names: Sequence[str]):
        self.tensors, self.names = tensors, names
        self.place = {name: at for at, name in enumerate(names)}
        self.ends = list(accumulate(map(tensors.nbytes, names)))  # bytes up to and with each name
        self.fetched = 0  # how many names

    def reached(self, name: str) -> None:
        """Called for a tensor that is about to be read."""
        at = self.place[name]
        if at == 0:
            self.fetched = 0  # the first rank, or the next one
        while self.fetched < len(self.names) and self._distance(at) < _AHEAD:
            self.tensors.checkpoint.will_read(self.tensors.sources[self.names[self.fetched]].parts)
            self.fetched += 1

    def _distance(self, at: int) -> int:
        """Bytes that are on their way beyond the tensor `at`."""
        return self.ends[self.fetched - 1] - self.ends[at] if self.fetched > at else -1
