"""A checkpoint of safetensors as the source of a model's weights: what a rank asks for is read when it asks."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice

from onecat_jax.errors import CheckpointError
from onecat_jax.loading.checkpoint import Checkpoint
from onecat_jax.loading.formats import Mismatch, Source, Stored
from onecat_jax.loading.read_ahead import ReadAhead
from onecat_jax.models.slices import HostTensor, check_cut, cut_of
from onecat_jax.models.tensors import Piece, TensorKind


class CheckpointTensors:
    """A `TensorSource`. Formats stored row by row are views; others are transposed piece by piece, and let go with it."""

    def __init__(self, checkpoint: Checkpoint, sources: Mapping[str, Source], ranks: int = 1):
        self.checkpoint, self.sources, self.ranks = checkpoint, sources, ranks
        self._ahead = ReadAhead(self.nbytes, lambda name: checkpoint.will_read(sources[name].parts))

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

    def describe(self, name: str) -> str:
        stored = self.sources[name].weight
        return str(Stored(stored, self.checkpoint.tensors[stored]))

    def expect(self, names: Sequence[str]) -> None:
        self._ahead.expect(names)

    @contextmanager
    def site(self, names: Sequence[str]) -> Iterator[Piece]:
        """While a piece is packed, those that follow are on their way from disk."""
        self.expect(names)
        place = {name: at for at, name in enumerate(names)}
        reading: set[int] = set()  # ranks

        def piece(name: str, rank: int) -> HostTensor:
            if reading and rank not in reading:
                self._ahead.again(names)
            reading.add(rank)
            self._ahead.reached(name, islice(names, place[name] + 1, None))
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
            problem = mismatch.within(self.checkpoint.tensors)
            raise CheckpointError(f"{self.checkpoint.root}: {problem}") from mismatch
