"""What a tensor-parallel rank holds of a tensor: the one place that cuts."""

from dataclasses import dataclass

import numpy as np

from onecat_jax.custom_calls.linear import DenseTensor, NVFP4Tensor
from onecat_jax.custom_calls.linear.weights import GROUP
from onecat_jax.errors import EngineError
from onecat_jax.models.spec import Axis, TensorSpec
from onecat_jax.sharding import RULES, Rules

HostTensor = DenseTensor | NVFP4Tensor | np.ndarray
Span = tuple[int, int]  # start and stop


@dataclass(frozen=True)
class Cut:
    """A part of a tensor: spans of one dimension, put side by side."""

    dim: int
    spans: tuple[Span, ...]  # ascending; spans that touch are one

    @property
    def size(self) -> int:
        """Indices that are left of the dimension."""
        return sum(stop - start for start, stop in self.spans)


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
      EngineError: a section doesn't divide, or scale groups of an NVFP4 tensor would be cut through.
    """
    cut = cut_of(spec, rank, ranks)
    if cut is None:
        return tensor
    if isinstance(tensor, np.ndarray):
        return _take(tensor, cut)
    if isinstance(tensor, DenseTensor):
        return DenseTensor(_take(tensor.weight, cut))
    along_k = cut.dim == 1
    refuse_cut_groups(name, spec, ranks)
    codes = _take(tensor.codes, cut, 2 if along_k else 1)
    scales = _take(tensor.scales, cut, GROUP if along_k else 1)
    return NVFP4Tensor(codes, scales, tensor.global_scale)


def _take(array: np.ndarray, cut: Cut, each: int = 1) -> np.ndarray:
    """The spans of an array, one index of which stands for `each` of the tensor."""
    before = (slice(None),) * cut.dim
    parts = [array[(*before, slice(start // each, stop // each))] for start, stop in cut.spans]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=cut.dim)


def cuts_groups(name: str, spec: TensorSpec, ranks: int) -> str | None:
    """What splitting an NVFP4 tensor over so many ranks would do; None if it is possible: K is cut between scale groups.

    Raises:
      EngineError: a section doesn't divide.
    """
    k, local = spec.shape[1], local_shape(spec, ranks)[1]
    if local == k or local % GROUP == 0:
        return None
    return f"leaves {local} of K = {k} input features of {name} to a rank, where NVFP4 scales need a multiple of {GROUP}"


def refuse_cut_groups(name: str, spec: TensorSpec, ranks: int) -> None:
    """Raises EngineError if ranks would share a scale group of an NVFP4 tensor, or the tensor doesn't divide."""
    if reason := cuts_groups(name, spec, ranks):
        raise EngineError(f"tensor_parallel_size is {ranks}, which {reason}.")
