"""Which logical axes of a tensor are split, and which part of them a rank gets.

Models name the axes of their tensors (`models.spec.TensorSpec.axes`); the rules say what becomes of each name. Everything that
cuts a tensor (loading, conversion, memory plan) asks here by way of `models.slices`, so that no two of them can disagree.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from onecat_jax.errors import EngineError
from onecat_jax.sharding.shards import TP


def _default_axes() -> Mapping[str, str]:
    return MappingProxyType(
        {
            "vocab": TP,  # rows of embedding and head: ids, and the logits that belong to them
            "heads": TP,  # query heads: output rows of q_proj, input columns of o_proj
            "kv_heads": TP,  # key/value heads; repeated on neighbouring ranks where there are fewer heads than ranks
            "key_heads": TP,  # GDN
            "value_heads": TP,  # GDN
            "mlp": TP,  # feed-forward features
            "context": TP,  # output rows of a draft's projection of target rows, which are gathered again
        }
    )  # "embed" and unnamed axes stay whole: the residual stream is the same on every rank


@dataclass(frozen=True)
class Split:
    """How the units of an axis are dealt out: in `parts` equal pieces, each held by `repeats` neighbouring ranks."""

    parts: int
    repeats: int = 1

    def part_of(self, rank: int) -> int:
        """The piece that a rank holds."""
        return rank // self.repeats


@dataclass(frozen=True)
class Rules:
    """Logical axis -> mesh axis. Logical axes that aren't listed are never split."""

    axes: Mapping[str, str] = field(default_factory=_default_axes)

    def split(self, axis: str | None, units: int, ranks: int) -> Split | None:
        """How an axis is cut.

        Args:
          axis: its logical name.
          units: what it is counted in (heads, features, ids): a piece is a whole number of them.
          ranks: of the tensor-parallel axis.

        Returns:
          None if it stays whole.

        Raises:
          EngineError: the units don't divide.
        """
        if ranks == 1 or axis is None or axis not in self.axes:
            return None
        if not divides(axis, units, ranks):
            raise EngineError(indivisible(axis, units, ranks))
        parts = min(ranks, units)
        return Split(parts, ranks // parts)


def divides(axis: str, units: int, ranks: int) -> bool:
    """Whether every rank gets the same number of units. Key/value heads may be fewer than ranks: some get the same one."""
    return units % ranks == 0 or (axis == "kv_heads" and ranks % units == 0)


def indivisible(name: str, units: int, ranks: int) -> str:
    """Why an axis can't be split, with what would do."""
    fits = [n for n in range(1, ranks) if divides(name, units, n)]
    return (
        f"tensor_parallel_size is {ranks}, which doesn't divide {name} = {units}; "
        f"tensor_parallel_size {', '.join(map(str, fits))} would"
    )


RULES = Rules()


def local_counts(units: Mapping[str, int], ranks: int, rules: Rules = RULES) -> dict[str, int]:
    """Units of each logical axis on one rank.

    Raises:
      EngineError: an axis doesn't divide.
    """
    counts = {}
    for name, count in units.items():
        split = rules.split(name, count, ranks)
        counts[name] = count if split is None else count // split.parts
    return counts
