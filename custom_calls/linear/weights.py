"""Weights of a linear: on the host as a checkpoint holds them, on the device as the handlers read them."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array, lax

GROUP = 16  # NVFP4 codes per block scale
BLOCK = 128  # edge of an FP8 scale block
HALF_UNIT = 32  # INT4 groups are multiples of so many k, which have one scale in every layout


@dataclass(frozen=True)
class DenseTensor:
    """An unquantised matrix of a checkpoint."""

    weight: np.ndarray  # [N, K] float32, float16 or bfloat16


@dataclass(frozen=True)
class NVFP4Tensor:
    """An NVFP4 matrix of a checkpoint: value = E2M1(code) * E4M3(scale) * global_scale."""

    codes: np.ndarray  # uint8 [N, K / 2], the low nibble is the even k
    scales: np.ndarray  # uint8 [N, K / 16], the bits of E4M3
    global_scale: np.float32 | float  # a multiplier


@dataclass(frozen=True)
class FP8Tensor:
    """An FP8 matrix of a checkpoint: value = E4M3(code) * scale.

    There is one scale, or one per output row, or one per block of 128 rows and 128 k. A part of a block-scaled matrix whose
    rows don't start on the border of a block has one per row and 128 k; its k must start on a border.
    """

    codes: np.ndarray  # uint8 [N, K], the bits of E4M3
    scales: np.ndarray  # float32 [], [N], [ceil(N / 128), ceil(K / 128)] or [N, ceil(K / 128)]

    def row_scales(self) -> np.ndarray:
        """The scales of every row: float32 [N], or [N, ceil(K / 128)] where they differ along K."""
        n = self.codes.shape[0]
        if self.scales.ndim == 0:
            return np.full(n, self.scales)
        if self.scales.ndim == 1 or self.scales.shape[0] == n:
            return self.scales
        return np.repeat(self.scales, BLOCK, axis=0)[:n]


@dataclass(frozen=True)
class INT4Tensor:
    """A 4-bit integer matrix of a checkpoint: value = (code - zero) * scale, both of the code's group of consecutive k.

    Symmetric formats have zeros of 8. With `order`, column j of the codes multiplies feature order[j] of the input, and groups
    are consecutive in the order of the codes.
    """

    codes: np.ndarray  # uint8 [N, K / 2], unsigned, the low nibble is the even k
    scales: np.ndarray  # float16, bfloat16 or float32 [N, K / group]
    zeros: np.ndarray  # uint8 [N, K / group], 0 .. 15
    group: int  # k per scale, a multiple of 32
    order: np.ndarray | None = None  # int32 [K]


HostMatrix = DenseTensor | NVFP4Tensor | FP8Tensor | INT4Tensor


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Dense:
    """An unquantised weight of one layer kind."""

    weight: Array | tuple[Array, ...]  # [L, N, K], or L separate [N, K]

    @property
    def layers(self) -> int:
        return len(self.weight)

    @property
    def n(self) -> int:
        """Output features N."""
        return self._matrix_shape[0]

    @property
    def k(self) -> int:
        """Input features K."""
        return self._matrix_shape[1]

    @property
    def dtype(self) -> Any:
        return self.weight[0].dtype if isinstance(self.weight, tuple) else self.weight.dtype

    @property
    def _matrix_shape(self) -> tuple[int, ...]:
        return self.weight[0].shape if isinstance(self.weight, tuple) else self.weight.shape[1:]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["codes", "scales", "global_scale"],
    meta_fields=["n", "k", "layout"],
)
@dataclass(frozen=True)
class NVFP4:
    """An NVFP4 weight of one layer kind, packed for one route.

    Layout "rows" is the checkpoint's order; the others are described in packing.py. Rows and columns that a packed
    layout adds hold zero codes and zero scales.
    """

    codes: Array  # uint8 [L, ...]
    scales: Array  # uint8 [L, ...], the bits of E4M3
    global_scale: Array  # float32 [L, N physical], one per row: fused siblings keep their own
    n: int  # logical output features
    k: int  # logical input features
    layout: str

    @property
    def layers(self) -> int:
        return self.codes.shape[0]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["codes", "scales"],
    meta_fields=["n", "k", "layout"],
)
@dataclass(frozen=True)
class FP8:
    """An FP8 weight of one layer kind, packed for one route. Rows that a packed layout adds hold zeros."""

    codes: Array  # uint8 [L, ...], the bits of E4M3
    scales: Array  # float32 [L, N physical], one per row; or [L, ...], one per row and 128 k
    n: int  # logical output features
    k: int  # logical input features
    layout: str

    @property
    def layers(self) -> int:
        return self.codes.shape[0]

    @property
    def blocked(self) -> bool:
        """Whether scales differ along K."""
        return self.scales.ndim > 2


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["codes", "scales", "zeros", "order"],
    meta_fields=["n", "k", "group", "layout"],
)
@dataclass(frozen=True)
class INT4:
    """A 4-bit integer weight of one layer kind, packed for one route. Rows and k that a packed layout adds hold zeros."""

    codes: Array  # uint8 [L, ...]
    scales: Array  # float16, bfloat16 or float32 [L, ...], one per row and group
    zeros: Array  # uint8, as the scales
    order: (
        Array | None
    )  # int32 [L, K]: which input feature column j of the codes multiplies; None for the j-th
    n: int  # logical output features
    k: int  # logical input features
    group: int  # k per scale
    layout: str

    @property
    def layers(self) -> int:
        return self.codes.shape[0]


Linear = Dense | NVFP4 | FP8 | INT4


@partial(jax.tree_util.register_dataclass, data_fields=["index"], meta_fields=["mul", "add"])
@dataclass(frozen=True)
class Layer:
    """Which layer of a stack: index * mul + add.

    The index is a Python int, or the raw induction variable of a fori_loop: the handlers do the arithmetic, so that XLA
    needs no scalar kernel for it.
    """

    index: int | Array
    mul: int = 1
    add: int = 0

    @property
    def number(self) -> int | Array:
        """The layer's place in the stack; an int if it is known while tracing."""
        return self.index * self.mul + self.add


def pick(stack: Array | tuple[Array, ...], layer: Layer) -> Array:
    """One layer [...] of a stack [L, ...] or of a tuple of L arrays; a static slice if its number is known."""
    number = layer.number
    if isinstance(number, int):
        return stack[number]
    if isinstance(stack, tuple):
        raise TypeError("separate arrays per layer need a layer that is known while tracing")
    return lax.dynamic_index_in_dim(stack, number, keepdims=False)
