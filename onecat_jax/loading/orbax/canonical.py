"""The canonical, unfused form: which arrays a tensor is stored as, and how each is cut for ranks.

A tensor keeps its canonical name. A dense one is one array under that name, in its stored dtype. An NVFP4 linear is three
beside each other: `codes` uint8 [N, K/2] (the low nibble is the even k), `scales` float8_e4m3fn [N, K/16] and `global_scale`
float32 [], a multiplier: value = E2M1(code) * scale * global_scale. Query, key and value that a checkpoint holds side by side
are arrays of their own below `query`, `key` and `value`. So every array is split over ranks along one dimension, in equal
contiguous pieces.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

import jax
import ml_dtypes
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from onecat_jax.custom_calls.linear import DenseTensor, NVFP4Tensor
from onecat_jax.custom_calls.linear.weights import GROUP
from onecat_jax.loading.formats import Format
from onecat_jax.models.slices import HostTensor
from onecat_jax.models.spec import Section, TensorSpec
from onecat_jax.sharding import RULES, TP, Placement, Rules, Split

CODES, SCALES, GLOBAL_SCALE = "codes", "scales", "global_scale"
_SECTIONS = ("query", "key", "value")  # of a dimension that has three, the only kind there is
_ALIGNED_RANKS = 8  # ranks up to here that divide an axis read whole chunks of a file
_LEAST_CHUNK, _LARGEST_CHUNK = 2**14, 2**25  # bytes
_E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
_FLOAT32 = np.dtype(np.float32)
_UINT8 = np.dtype(np.uint8)


@dataclass(frozen=True)
class CanonicalArray:
    """One stored array of a tensor.

    Attributes:
      name: dotted path in the stored tree.
      part: CODES, SCALES or GLOBAL_SCALE of an NVFP4 tensor, "" for a dense one.
      section: which section of the tensor's rows it holds.
      axes: what each dimension consists of, counted in elements of this array.
    """

    name: str
    part: str
    section: int
    dtype: np.dtype
    axes: tuple[Section, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.size for axis in self.axes)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def split(self, ranks: int, rules: Rules = RULES) -> tuple[int, Split] | None:
        """The dimension that is cut and how; None if every rank holds the whole array.

        Raises:
          EngineError: its units don't divide.
        """
        for dim, axis in enumerate(self.axes):
            split = rules.split(axis.axis, axis.units, ranks)
            if split is not None:
                return dim, split
        return None

    def extent(self, rank: int, ranks: int, rules: Rules = RULES) -> tuple[slice, ...]:
        """What a rank holds, one slice per dimension.

        Raises:
          EngineError: its units don't divide.
        """
        extent = [slice(0, size) for size in self.shape]
        if (found := self.split(ranks, rules)) is not None:
            dim, split = found
            size = self.shape[dim] // split.parts
            start = size * split.part_of(rank)
            extent[dim] = slice(start, start + size)
        return tuple(extent)

    def sharding(self, placement: Placement, rules: Rules = RULES) -> jax.sharding.Sharding:
        """The target sharding: `extent` of every rank on its device.

        Raises:
          EngineError: its units don't divide.
        """
        found = self.split(placement.size, rules)
        if found is None:
            return placement.sharding(PartitionSpec())
        dim, split = found
        spec = PartitionSpec(*[None] * dim, TP)
        if split.repeats == 1:
            return placement.sharding(spec)
        # Neighbouring ranks hold the same piece: the second mesh axis replicates it.
        devices = np.array(placement.devices).reshape(split.parts, split.repeats)
        return NamedSharding(Mesh(devices, (TP, "repeat")), spec)

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Shape of the equal pieces that the array is stored in, along the dimension that ranks split."""
        shape = list(self.shape)
        if shape:
            split = [dim for dim, axis in enumerate(self.axes) if axis.axis in RULES.axes]
            dim = split[0] if split else 0
            shape[dim] //= self._chunks(
                dim, gcd(self.axes[dim].units, _ALIGNED_RANKS) if split else 1
            )
        return tuple(shape)

    def _chunks(self, dim: int, chunks: int) -> int:
        """A number of chunks near the given one that makes them neither tiny nor huge."""
        while chunks % 2 == 0 and self.nbytes // chunks < _LEAST_CHUNK:
            chunks //= 2
        while self.nbytes // chunks > _LARGEST_CHUNK and self.shape[dim] % (2 * chunks) == 0:
            chunks *= 2
        return chunks


def arrays_of(name: str, spec: TensorSpec, form: Format, dtype: np.dtype) -> list[CanonicalArray]:
    """The arrays that a tensor is stored as.

    Args:
      name: its canonical name.
      dtype: of a dense tensor.
    """
    parent, _, leaf = name.rpartition(".")
    rows, *others = spec.axes
    found = []
    for at, section in enumerate(rows):
        base = f"{parent}.{_SECTIONS[at]}" if len(rows) > 1 else parent
        axes = (section, *(axis for (axis,) in others))
        if form == "dense":
            found.append(CanonicalArray(_join(base, leaf), "", at, dtype, axes))
            continue
        codes, scales = (_along_k(axes, each) for each in (2, GROUP))
        found.append(CanonicalArray(_join(base, CODES), CODES, at, _UINT8, codes))
        found.append(CanonicalArray(_join(base, SCALES), SCALES, at, _E4M3, scales))
    if form == "nvfp4":
        found.append(CanonicalArray(_join(parent, GLOBAL_SCALE), GLOBAL_SCALE, 0, _FLOAT32, ()))
    return found


def part_of(array: str) -> str:
    """The part that a stored array is, by its name; "" for a dense tensor."""
    leaf = array.rpartition(".")[2]
    return leaf if leaf in (CODES, SCALES, GLOBAL_SCALE) else ""


def section_of(array: str) -> int:
    """Which section of the rows a stored array holds, by its name."""
    parent = array.rpartition(".")[0].rpartition(".")[2]
    return _SECTIONS.index(parent) if parent in _SECTIONS else 0


def _join(parent: str, leaf: str) -> str:
    return f"{parent}.{leaf}" if parent else leaf


def _along_k(axes: tuple[Section, ...], each: int) -> tuple[Section, ...]:
    """Axes of a matrix [N, K] of which one element stands for `each` along K."""
    n, k = axes
    return n, Section(k.axis, k.size // each, k.units)


def values_of(array: CanonicalArray, tensor: HostTensor, spec: TensorSpec) -> np.ndarray:
    """The array as a view of the host tensor that it is a part of."""
    if isinstance(tensor, NVFP4Tensor):
        if array.part == GLOBAL_SCALE:
            return np.asarray(tensor.global_scale, _FLOAT32)
        whole = tensor.codes if array.part == CODES else tensor.scales.view(_E4M3)
    else:
        whole = tensor.weight if isinstance(tensor, DenseTensor) else tensor
    start = sum(section.size for section in spec.axes[0][: array.section])
    return whole[start : start + array.axes[0].size]


def tensor_of(
    spec: TensorSpec, arrays: Sequence[CanonicalArray], values: Sequence[np.ndarray]
) -> HostTensor:
    """The host tensor, or what a rank holds of it, from its arrays in the order of `arrays_of`."""
    parts: dict[str, list[np.ndarray]] = {}
    for array, value in zip(arrays, values, strict=True):
        parts.setdefault(array.part, []).append(value)
    if GLOBAL_SCALE in parts:
        scales = _rows(parts[SCALES]).view(_UINT8)
        return NVFP4Tensor(_rows(parts[CODES]), scales, np.float32(parts[GLOBAL_SCALE][0]))
    whole = _rows(parts[""])
    return DenseTensor(whole) if spec.kind == "linear" else whole


def _rows(sections: list[np.ndarray]) -> np.ndarray:
    return sections[0] if len(sections) == 1 else np.concatenate(sections)
