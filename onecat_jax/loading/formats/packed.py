"""compressed-tensors "pack-quantized" INT4: weight_packed I32 [N, K/8] along K, weight_scale [N, K/g], weight_shape I64 [2],
weight_zero_point I32 [ceil(N/8), K/g] packed along N unless it is symmetric, and perhaps weight_g_idx I32 [K].

Codes are unsigned, 8 more than the signed values, and so are zero points. g_idx says which group each column belongs to: where
they aren't neighbours (activation order), columns are brought into the order of their groups. Exporters that didn't reorder
have the natural order or -1 in it.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from onecat_jax.custom_calls.linear import INT4Tensor
from onecat_jax.loading.formats.int4 import (
    CODES,
    INT4_SCALES,
    INT4_WORDS,
    INT4Source,
    checked_scales,
    group_size,
    no_zeros,
    unpack_columns,
)
from onecat_jax.loading.formats.parts import Checks, Mismatch, Parts
from onecat_jax.loading.formats.source import Arrays
from onecat_jax.models.spec import TensorSpec

_PLACES = tuple(range(CODES))
_ROWS_AT_ONCE = 512  # whose columns are reordered together


@dataclass(frozen=True)
class PackedSource(INT4Source):
    """Codes packed along K.

    Attributes:
      shape: stored name of the logical shape.
      index: stored name of the columns' groups; "" if they are neighbours.
    """

    shape: str = ""
    index: str = ""

    @property
    def parts(self) -> tuple[str, ...]:
        return *super().parts, *(name for name in (self.shape, self.index) if name)

    @property
    def ordered(self) -> bool:
        return bool(self.index)

    def settled(self, arrays: Arrays) -> Self:
        """Whether there is an order of columns; and the logical shape, which must be the model's."""
        stored = tuple(int(size) for size in arrays(self.shape)) if self.shape else self.spec.shape
        if stored != self.spec.shape:
            raise Mismatch(
                f"is {list(stored)}, the model needs {list(self.spec.shape)}", self.shape
            )
        if not self.index or self._order(arrays) is not None:
            return self
        return replace(self, index="")

    def _order(self, arrays: Arrays) -> np.ndarray | None:
        """int32 [K]: the columns group by group; None if that is how they are.

        Raises:
          Mismatch: groups of unlike sizes.
        """
        index = arrays(self.index)
        if (index == -1).all():
            return None
        groups = len(index) // self.group
        sizes = np.bincount(index, minlength=groups) if index.min() >= 0 else np.zeros(0, np.int64)
        if len(sizes) != groups or (sizes != self.group).any():
            raise Mismatch(
                f"must name each of {groups} groups {self.group} times; it holds {len(np.unique(index))} numbers from "
                f"{index.min()} to {index.max()}",
                self.index,
            )
        order = np.argsort(index, kind="stable").astype(np.int32)
        return None if (order == np.arange(len(order))).all() else order

    def read(self, arrays: Arrays) -> INT4Tensor:
        codes = arrays(self.weight).view(np.uint8)
        scales = checked_scales(self.scale, arrays(self.scale))
        order = self._order(arrays) if self.index else None
        if order is not None:
            codes = _reordered(codes, order)
        return INT4Tensor(codes, scales, self._zeros(arrays, scales), self.group, order)

    def _zeros(self, arrays: Arrays, scales: np.ndarray) -> np.ndarray:
        """uint8 [N, K/g]."""
        if not self.zero_point:
            return no_zeros(scales)
        words = np.ascontiguousarray(arrays(self.zero_point).T)
        return np.ascontiguousarray(unpack_columns(words, _PLACES).T[: len(scales)])


def _reordered(codes: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Columns of uint8 [N, K / 2] codes in another order, block by block of rows."""
    out = np.empty_like(codes)
    for row in range(0, len(codes), _ROWS_AT_ONCE):
        block = codes[row : row + _ROWS_AT_ONCE]
        single = np.stack([block & 15, block >> 4], axis=-1).reshape(len(block), -1)
        single = np.take(single, order, axis=1)
        out[row : row + _ROWS_AT_ONCE] = single[:, 0::2] | single[:, 1::2] << 4
    return out


def packed(spec: TensorSpec, parts: Parts) -> PackedSource:
    """Raises Mismatch unless all parts are stored as they should be."""
    checks = Checks(parts, "weight_packed", "INT4")
    n, k = spec.shape
    codes = parts["weight_packed"]
    if codes.info.shape == (n, k // 4):
        raise Mismatch(f"{codes} is packed INT8, which isn't implemented")
    codes = checks.part("weight_packed", INT4_WORDS, (n, -(-k // CODES)))
    scale = checks.of("weight_scale", INT4_SCALES, f"[{n}, K/group]")
    groups = scale.info.shape[1] if len(scale.info.shape) == 2 else 0
    scale = checks.part("weight_scale", INT4_SCALES, (n, groups or 1))
    group = group_size(checks, k, groups)
    zeros = checks.optional("weight_zero_point", INT4_WORDS, (-(-n // CODES), groups))
    shape = checks.part("weight_shape", ("I64", "I32"), (2,))
    index = checks.optional("weight_g_idx", ("I32", "I64"), (k,))
    checks.nothing_else(
        "weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"
    )
    common = (spec, codes.name, scale.name, zeros, group, scale.info.dtype)
    return PackedSource(*common, shape.name, index)
