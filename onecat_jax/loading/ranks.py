"""Whether a checkpoint can be split over tensor-parallel ranks: one refusal for everything that doesn't divide."""

from collections.abc import Mapping
from typing import Protocol

from onecat_jax.errors import EngineError
from onecat_jax.loading.formats import Source
from onecat_jax.models.slices import cuts_groups
from onecat_jax.sharding import RULES
from onecat_jax.sharding.rules import divides


class Geometry(Protocol):
    """What is counted of a model."""

    @property
    def units(self) -> dict[str, int]:
        """Units of each logical axis."""
        ...

    @property
    def num_attention_heads(self) -> int:
        """Query heads."""
        ...


def check_ranks(config: Geometry, sources: Mapping[str, Source], ranks: int) -> None:
    """Checks heads, features, ids, and the scale groups of quantised tensors that are split along K.

    Raises:
      EngineError: what doesn't divide, with numbers, and which numbers of ranks would do.
    """
    problems = _problems(config, sources, ranks)
    if not problems:
        return
    # Query heads divide only over as many ranks as there are heads.
    fits = [
        n for n in range(1, config.num_attention_heads + 1) if not _problems(config, sources, n)
    ]
    listed = ", ".join(map(str, fits))
    raise EngineError(
        f"tensor_parallel_size is {ranks}, which {'; and '.join(problems)}. It can be {listed}."
    )


def _problems(config: Geometry, sources: Mapping[str, Source], ranks: int) -> list[str]:
    units = config.units
    odd = [name for name in units if name in RULES.axes and not divides(name, units[name], ranks)]
    problems = []
    if odd:
        problems.append("doesn't divide " + ", ".join(f"{name} = {units[name]}" for name in odd))
    return problems + list(_cut_groups(sources, ranks, set(odd)).values())


def _cut_groups(sources: Mapping[str, Source], ranks: int, odd: set[str]) -> dict[str, str]:
    """Of every kind of tensor the first whose scale groups would be cut through, by the name's last words."""
    found: dict[str, str] = {}
    for name, source in sources.items():
        axes = {section.axis for axis in source.spec.axes for section in axis}
        kind = ".".join(name.split(".")[-3:])
        grain = source.grain
        if grain is None or name.startswith("mtp.") or axes & odd or kind in found:
            continue
        if reason := cuts_groups(name, source.spec, ranks, grain):
            found[kind] = reason
    return found
