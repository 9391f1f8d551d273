"""Runs of layers that are alike in kind and formats: what is stacked, and repeated by one program."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onecat_jax.models.qwen3_5.config import LayerKind, ModelConfig
from onecat_jax.models.tensors import TensorSource

GATES = ("linear_attn.in_proj_b", "linear_attn.in_proj_a")


@dataclass(frozen=True)
class SegmentPlan:
    """Layers first .. first + len(pattern) * repeats - 1 of the model."""

    pattern: tuple[LayerKind, ...]
    repeats: int
    first: int

    def layers(self, kind: LayerKind | None = None) -> list[int]:
        """Absolute indices of the segment's layers, of one kind or all."""
        kinds = self.pattern * self.repeats
        return [self.first + i for i, k in enumerate(kinds) if kind in (None, k)]


def plan_segments(signatures: Sequence[tuple[LayerKind, Any]]) -> tuple[SegmentPlan, ...]:
    """Cuts the layer list into runs of one repeating superblock, longest coverage first, shortest period on a tie.

    Args:
      signatures: per layer its kind and its formats; layers of a superblock position must agree in both.
    """
    plans: list[SegmentPlan] = []
    start = 0
    while start < len(signatures):
        rest = signatures[start:]
        period, repeats = max(
            ((p, _repeats(rest, p)) for p in range(1, len(rest) + 1)),
            key=lambda c: (_score(*c), -c[0]),
        )
        pattern = tuple(kind for kind, _ in rest[:period])
        plans.append(SegmentPlan(pattern, repeats, start))
        start += period * repeats
    return tuple(plans)


def _repeats(rest: Sequence[Any], period: int) -> int:
    count = 1
    while tuple(rest[count * period : (count + 1) * period]) == tuple(rest[:period]):
        count += 1
    return count


def _score(period: int, repeats: int) -> int:
    return period * repeats if repeats > 1 else 1


def signatures(source: TensorSource, config: ModelConfig) -> list[tuple[LayerKind, Any]]:
    """Per layer its kind and the formats of its tensors; those of the gates don't matter."""
    formats: dict[str, list[tuple[str, str, str]]] = {}
    for name in source.names:
        kind = source.kind(name)
        if name.startswith("layers.") and kind is not None:
            _, layer, leaf = name.split(".", 2)
            if leaf.removesuffix(".weight") not in GATES:
                formats.setdefault(layer, []).append((leaf, kind.__name__, source.variant(name)))
    return [(k, tuple(sorted(formats.get(str(i), ())))) for i, k in enumerate(config.layer_types)]
