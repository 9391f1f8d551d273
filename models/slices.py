"""What a tensor-parallel rank holds of a tensor: the one place that cuts."""

from onecat_jax.errors import EngineError
from onecat_jax.models.pieces import NVFP4_GRAIN, Cut, Grain, HostTensor, Span, grain_of, take
from onecat_jax.models.spec import Axis, TensorSpec
from onecat_jax.sharding import RULES, Rules

__all__ = [
    "Cut",
    "HostTensor",
    "Span",
    "check_cut",
    "cut_of",
    "cut_tensor",
    "cuts_groups",
    "local_shape",
]


def cut_of(spec: TensorSpec, rank: int, ranks: int, rules: Rules = RULES) -> Cut | None:
    """What a rank holds of a tensor; None for all of it.

    Raises:
      EngineError: a section doesn't divide.
      ValueError: two dimensions would be split.
    """
    spans = [_spans(axis, rank, ranks, rules) for axis in spec.axes]
    cut = [dim for dim, found in enumerate(spans) if found != ((0, spec.shape[dim]),)]
    if len(cut) > 1:
        raise ValueError(f"dimensions {cut} of a tensor {list(spec.shape)} would both be split")
    return Cut(cut[0], spans[cut[0]]) if cut else None


def _spans(axis: Axis, rank: int, ranks: int, rules: Rules) -> tuple[Span, ...]:
    """The spans of one dimension."""
    spans: list[Span] = []
    first = 0
    for section in axis:
        split = rules.split(section.axis, section.units, ranks)
        size = section.size if split is None else section.size // split.parts
        start = first if split is None else first + size * split.part_of(rank)
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], start + size)
        else:
            spans.append((start, start + size))
        first += section.size
    return tuple(spans)


def local_shape(spec: TensorSpec, ranks: int, rules: Rules = RULES) -> tuple[int, ...]:
    """The logical shape of what each rank holds.

    Raises:
      EngineError: a section doesn't divide.
    """
    cut = cut_of(spec, 0, ranks, rules)
    if cut is None:
        return spec.shape
    return *spec.shape[: cut.dim], cut.size, *spec.shape[cut.dim + 1 :]


def cut_tensor(
    name: str, tensor: HostTensor, spec: TensorSpec, rank: int, ranks: int
) -> HostTensor:
    """What a rank holds of a host tensor: views, or copies where several spans are put together.

    Raises:
      EngineError: a section doesn't divide, or scale groups of a quantised tensor would be cut through.
    """
    cut = cut_of(spec, rank, ranks)
    if cut is None:
        return tensor
    check_cut(name, spec, ranks, grain_of(tensor))
    return take(tensor, cut)


def check_cut(name: str, spec: TensorSpec, ranks: int, grain: Grain | None) -> None:
    """Raises EngineError if splitting a tensor over so many ranks would cut through its scale groups."""
    if grain is not None and (reason := cuts_groups(name, spec, ranks, grain)):
        raise EngineError(f"tensor_parallel_size is {ranks}, which {reason}.")


def cuts_groups(name: str, spec: TensorSpec, ranks: int, grain: Grain = NVFP4_GRAIN) -> str | None:
    """What splitting a quantised tensor over so many ranks would do; None if it is possible: K is cut between scale groups.

    Raises:
      EngineError: a section doesn't divide.
    """
    k, local = spec.shape[1], local_shape(spec, ranks)[1]
    if local == k or (grain.k and local % grain.k == 0):
        return None
    return f"leaves {local} of K = {k} input features of {name} to a rank, where {grain.why}"
