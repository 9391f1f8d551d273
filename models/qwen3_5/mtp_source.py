"""The tensors of the MTP head, seen as a small model of its own: without the `mtp.` in front of their names."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from onecat_jax.errors import CheckpointError
from onecat_jax.models.qwen3_5.config import LayerKind, ModelConfig
from onecat_jax.models.tensors import Piece, TensorKind, TensorSource

_PREFIX = "mtp."


@dataclass(frozen=True)
class _Head:
    """A `TensorSource` of the names that start with the prefix."""

    source: TensorSource

    @property
    def ranks(self) -> int:
        return self.source.ranks

    @property
    def names(self) -> Collection[str]:
        return [n.removeprefix(_PREFIX) for n in self.source.names if n.startswith(_PREFIX)]

    def kind(self, name: str) -> TensorKind | None:
        return self.source.kind(_PREFIX + name)

    def variant(self, name: str) -> str:
        return self.source.variant(_PREFIX + name)

    def nbytes(self, name: str) -> int:
        return self.source.nbytes(_PREFIX + name)

    def describe(self, name: str) -> str:
        return self.source.describe(_PREFIX + name)

    def expect(self, names: Sequence[str]) -> None:
        self.source.expect([_PREFIX + name for name in names])

    @contextmanager
    def site(self, names: Sequence[str]) -> Iterator[Piece]:
        with self.source.site([_PREFIX + name for name in names]) as piece:
            yield lambda name, rank: piece(_PREFIX + name, rank)


def mtp_config(config: ModelConfig) -> ModelConfig:
    """The head's layers as the layers of a model."""
    kind: LayerKind = "full_attention"
    return replace(config, layer_types=(kind,) * config.mtp_num_hidden_layers)


def mtp_source(source: TensorSource, head: ModelConfig) -> TensorSource:
    """Tensors of the MTP head of a checkpoint; `head` is its `mtp_config`.

    Raises:
      CheckpointError: there is none.
    """
    if head.num_hidden_layers == 0 or source.kind(f"{_PREFIX}fc.weight") is None:
        found = f"mtp_num_hidden_layers is {head.num_hidden_layers}"
        raise CheckpointError(
            f"the checkpoint has no MTP head ({found}, {len(_Head(source).names)} tensors under mtp.), which drafting by "
            "method 'mtp' needs; use a checkpoint that has one, or another method"
        )
    return _Head(source)
