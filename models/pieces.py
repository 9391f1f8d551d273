"""Parts of host tensors: the one place that knows how each kind is cut, and where it can't be."""

from dataclasses import dataclass

import numpy as np

from onecat_jax.custom_calls.linear import DenseTensor, FP8Tensor, HostMatrix, INT4Tensor
from onecat_jax.custom_calls.linear.weights import BLOCK, GROUP

HostTensor = HostMatrix | np.ndarray
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


@dataclass(frozen=True)
class Grain:
    """Where K of a matrix may be cut: at multiples of `k`, or nowhere if that is 0."""

    k: int
    why: str  # a clause: "NVFP4 scales need a multiple of 16"


NVFP4_GRAIN = Grain(GROUP, f"NVFP4 scales need a multiple of {GROUP}")
FP8_BLOCK_GRAIN = Grain(BLOCK, f"FP8 scale blocks need a multiple of {BLOCK}")
ORDERED_GRAIN = Grain(0, "INT4 columns in activation order have groups spread over all of K")


def int4_grain(group: int) -> Grain:
    """Of INT4 in consecutive groups."""
    return Grain(group, f"INT4 groups need a multiple of {group}")


def grain_of(tensor: HostTensor) -> Grain | None:
    """None where K may be cut anywhere."""
    if isinstance(tensor, FP8Tensor):
        return FP8_BLOCK_GRAIN if tensor.scales.ndim == 2 else None
    if isinstance(tensor, INT4Tensor):
        return int4_grain(tensor.group) if tensor.order is None else ORDERED_GRAIN
    return None if isinstance(tensor, np.ndarray | DenseTensor) else NVFP4_GRAIN


def take(tensor: HostTensor, cut: Cut) -> HostTensor:
    """A part of a host tensor: views, or copies where several spans are put together.

    A cut along K must respect the tensor's grain. Block scales of FP8 become scales of rows where rows are cut.
    """
    if isinstance(tensor, np.ndarray):
        return take_array(tensor, cut)
    if isinstance(tensor, DenseTensor):
        return DenseTensor(take_array(tensor.weight, cut))
    if isinstance(tensor, FP8Tensor):
        return FP8Tensor(take_array(tensor.codes, cut), _fp8_scales(tensor, cut))
    codes = take_array(tensor.codes, cut, 2 if cut.dim == 1 else 1)
    if isinstance(tensor, INT4Tensor):
        each = tensor.group if cut.dim == 1 else 1
        scales, zeros = (take_array(a, cut, each) for a in (tensor.scales, tensor.zeros))
        return INT4Tensor(codes, scales, zeros, tensor.group, tensor.order)
    scales = take_array(tensor.scales, cut, GROUP if cut.dim == 1 else 1)
    return type(tensor)(codes, scales, tensor.global_scale)


def _fp8_scales(tensor: FP8Tensor, cut: Cut) -> np.ndarray:
    if tensor.scales.ndim == 0:
        return tensor.scales
    if cut.dim == 0:
        return take_array(tensor.row_scales(), cut)
    return take_array(tensor.scales, cut, BLOCK) if tensor.scales.ndim == 2 else tensor.scales


def take_array(array: np.ndarray, cut: Cut, each: int = 1) -> np.ndarray:
    """The spans of an array, one index of which stands for `each` of the tensor."""
    before = (slice(None),) * cut.dim
    parts = [array[(*before, slice(start // each, -(-stop // each)))] for start, stop in cut.spans]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=cut.dim)
