"""Which logical axes of a tensor are split, and which part of them a rank gets.

Models name the axes of their tensors (`models.spec.TensorSpec.axes`); the rules say what becomes of each name. Everything that
cuts a tensor (loading, conversion, memory plan) asks here, so that no two of them can disagree.
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
        }
    )  # "embed" and unnamed axes stay whole: the residual stream is the same on every rank


@dataclass(frozen=True)
class Split:
    """How one axis of a tensor is cut: in `parts` equal pieces, each held by `repeats` neighbouring ranks."""

    axis: int
    parts: int
    repeats: int = 1

    def part_of(self, rank: int) -> int:
        """The piece that a rank holds."""
        return rank // self.repeats


@dataclass(frozen=True)
class Rules:
    """Logical axis -> mesh axis. Logical axes that aren't listed are never split."""

    axes: Mapping[str, str] = field(default_factory=_default_axes)

    def split(
        self, axes: tuple[str | None, ...], units: Mapping[str, int], ranks: int
    ) -> Split | None:
        """How a tensor is cut.

        Args:
          axes: logical axis of each dimension.
          units: what an axis is counted in (heads, features, ids): a piece is a whole number of them.
          ranks: of the tensor-parallel axis.

        Returns:
          None if the tensor stays whole.

        Raises:
          EngineError: the units don't divide.
          ValueError: two of its axes map to the mesh axis.
        """
        cut = [i for i, name in enumerate(axes) if name is not None and name in self.axes]
        if len(cut) > 1:
            raise ValueError(f"axes {axes} would be split twice over {TP!r}")
        if not cut or ranks == 1:
            return None
        name = axes[cut[0]]
        assert name is not None, "only named axes are cut"
        return _cut(cut[0], name, units[name], ranks)


def _cut(axis: int, name: str, units: int, ranks: int) -> Split:
    if units % ranks == 0:
        return Split(axis, ranks)
    if name == "kv_heads" and ranks % units == 0:
        return Split(axis, units, ranks // units)
    raise EngineError(indivisible(name, units, ranks))


def indivisible(name: str, units: int, ranks: int) -> str:
    """Why an axis can't be split, with what would do."""
    fits = [n for n in range(1, ranks) if units % n == 0 or (name == "kv_heads" and n % units == 0)]
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
        split = rules.split((name,), {name: count}, ranks)
        counts[name] = count if split is None else count // split.parts
    return counts
