"""The layers of one stack while it is built: each is written into its place, then all go to the device."""

import abc
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import ml_dtypes
import numpy as np
from jax import Array

from onecat_jax.custom_calls.linear.packing import (
    K_MULTIPLES,
    ROWS_OF_CODES,
    ROWS_OF_SUMS,
    pack_groups,
    pack_into,
    packed_shape,
    physical_rows,
)
from onecat_jax.custom_calls.linear.routes import (
    LAYOUT_OF_ROUTE,
    LinearDescriptor,
    LinearRoute,
    WeightKind,
    dense_dtype,
)
from onecat_jax.custom_calls.linear.weights import (
    BLOCK,
    FP8,
    GROUP,
    INT4,
    NVFP4,
    Dense,
    DenseTensor,
    FP8Tensor,
    INT4Tensor,
    Linear,
    NVFP4Tensor,
)

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_ROWS_AT_ONCE = 16  # cast while they are in the cache
_ALIGNMENT = 64  # bytes: memory so aligned is taken over by a CPU device as it is


class Stack(abc.ABC):
    """What all kinds share: the layers' common shape, and where they go."""

    kind: ClassVar[WeightKind]

    def __init__(
        self, layers: int, n: int, k: int, route: LinearRoute, dtype: Any, device: jax.Device | None
    ):
        self.layers, self.n, self.k = layers, n, k
        self.route, self.dtype, self.device = route, np.dtype(dtype), device
        self.chosen = route.plan(LinearDescriptor(self.kind, n, k, self.dtype)).name
        self.layout = LAYOUT_OF_ROUTE.get(self.chosen, "rows")

    @abc.abstractmethod
    def write(self, at: int, row: Sequence[Any]) -> None:
        """Fuses the siblings of layer `at`; layers come in order."""

    @abc.abstractmethod
    def placed(self) -> Linear:
        """The weight on the device, after the last layer."""

    def check(self, shape: tuple[int, int]) -> None:
        if shape != (self.n, self.k):
            both = sorted({shape, (self.n, self.k)})
            raise ValueError(f"all layers of a stack need the same shape, found {both}")

    @property
    def rows(self) -> int:
        """N of the layout."""
        return self.n if self.layout == "rows" else physical_rows(self.n)

    def place(self, array: np.ndarray) -> Array:
        return jax.device_put(array, self.device)

    def empty(self, what: str, columns: int) -> np.ndarray:
        """Room for one packed array [N, C] of every layer."""
        shape = packed_shape(f"{self.kind} {what}", self.n, columns, self.layout)
        return _empty((self.layers, *shape), np.dtype(np.uint8))

    def pack(self, out: np.ndarray, what: str, siblings: list[np.ndarray]) -> None:
        """Packs one layer's arrays, concatenated along N."""
        pack_into(out, f"{self.kind} {what}", siblings, self.layout)


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Uninitialised host memory. It is written once and never after it is placed, for a CPU device doesn't copy it."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % _ALIGNMENT
    return raw[first : first + size].view(dtype).reshape(shape)


class DenseStack(Stack):
    """Dense layers, written into place one by one; or placed one by one where they stay separate."""

    kind = "dense"

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.separate: list[Array] = []
        self.host: np.ndarray | None = None  # [L, N, K]

    def write(self, at: int, row: Sequence[DenseTensor]) -> None:
        dtype = dense_dtype([tensor.weight.dtype for tensor in row], self.dtype, self.chosen)
        matrix = _empty((self.n, self.k), dtype) if self.route.separate else self._room(at, dtype)
        first = 0
        for tensor in row:
            rows = tensor.weight.shape[0]
            _cast_into(matrix[first : first + rows], tensor.weight)
            first += rows
        if self.route.separate:
            self.separate.append(self.place(matrix))

    def _room(self, at: int, dtype: np.dtype) -> np.ndarray:
        """Where layer `at` is written. Layers of several dtypes are all kept in the compute dtype."""
        if self.host is None:
            self.host = _empty((self.layers, self.n, self.k), dtype)
        elif self.host.dtype not in (dtype, self.dtype):
            narrow, self.host = self.host, _empty(self.host.shape, self.dtype)
            _cast_into(self.host[:at], narrow[:at])
        return self.host[at]

    def placed(self) -> Dense:
        return Dense(tuple(self.separate) if self.host is None else self.place(self.host))


class NVFP4Stack(Stack):
    """NVFP4 layers, packed one by one."""

    kind = "nvfp4"

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.codes = self.empty("codes", self.k // 2)
        self.scales = self.empty("scales", self.k // GROUP)
        self.global_scale = np.zeros((self.layers, self.rows), np.float32)

    def write(self, at: int, row: Sequence[NVFP4Tensor]) -> None:
        self.pack(self.codes[at], "codes", [t.codes for t in row])
        self.pack(self.scales[at], "scales", [t.scales for t in row])
        first = 0
        for tensor in row:
            rows = tensor.codes.shape[0]
            self.global_scale[at, first : first + rows] = tensor.global_scale
            first += rows

    def placed(self) -> NVFP4:
        return NVFP4(
            codes=self.place(self.codes),
            scales=self.place(self.scales),
            global_scale=self.place(self.global_scale),
            n=self.n,
            k=self.k,
            layout=self.layout,
        )


class FP8Stack(Stack):
    """FP8 layers, packed one by one. Their scales wait for the last one: any that differ along K make all do."""

    kind = "fp8"

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.codes = self.empty("codes", self.k)
        self.scales: list[np.ndarray] = []  # per layer [N] or [N, ceil(K / 128)]

    def write(self, at: int, row: Sequence[FP8Tensor]) -> None:
        self.pack(self.codes[at], "codes", [t.codes for t in row])
        self.scales.append(np.concatenate(self._alike([t.row_scales() for t in row])))

    def placed(self) -> FP8:
        scales = np.stack([self._packed(s) for s in self._alike(self.scales)])
        return FP8(self.place(self.codes), self.place(scales), self.n, self.k, self.layout)

    def _alike(self, scales: list[np.ndarray]) -> list[np.ndarray]:
        """All per row, or all per row and 128 k."""
        if all(s.ndim == 1 for s in scales):
            return scales
        blocks = -(-self.k // BLOCK)
        return [np.repeat(s[:, None], blocks, axis=1) if s.ndim == 1 else s for s in scales]

    def _packed(self, scales: np.ndarray) -> np.ndarray:
        if scales.ndim == 1:
            return np.pad(scales, (0, self.rows - self.n))
        if self.layout == "rows":
            return scales
        return pack_groups(scales, BLOCK, ROWS_OF_SUMS[self.layout])


class INT4Stack(Stack):
    """INT4 layers, packed one by one. Scales and zero points wait for the last one: all get the groups that suit all."""

    kind = "int4"

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.codes = self.empty("codes", self.k // 2)
        self.tensors: list[INT4Tensor] = []  # scales, zero points and order of each layer; no codes
        self.group = self.k

    def write(self, at: int, row: Sequence[INT4Tensor]) -> None:
        self.pack(self.codes[at], "codes", [t.codes for t in row])
        fused = _fused(row)
        self.group = math.gcd(self.group, fused.group)
        self.tensors.append(fused)

    def placed(self) -> INT4:
        layers = [_regrouped(t, self.group) for t in self.tensors]
        dtype = _common([t.scales for t in layers])
        return INT4(
            codes=self.place(self.codes),
            scales=self._place_groups([t.scales.astype(dtype) for t in layers], ROWS_OF_SUMS),
            zeros=self._place_groups([t.zeros for t in layers], ROWS_OF_CODES),
            order=self._place_order([t.order for t in layers]),
            n=self.n,
            k=self.k,
            group=self.group,
            layout=self.layout,
        )

    def _place_groups(self, layers: list[np.ndarray], rows: dict[str, np.ndarray]) -> Array:
        if self.layout != "rows":
            at, multiple = rows[self.layout], K_MULTIPLES[self.layout]
            layers = [pack_groups(values, self.group, at, multiple) for values in layers]
        return self.place(np.stack(layers))

    def _place_order(self, orders: list[np.ndarray | None]) -> Array | None:
        if all(order is None for order in orders):
            return None
        natural = np.arange(self.k, dtype=np.int32)
        return self.place(np.stack([natural if order is None else order for order in orders]))


def _cast_into(out: np.ndarray, values: np.ndarray) -> None:
    """Copies and casts. A bfloat16 is the upper half of a float32, which numpy moves several times as fast as it casts."""
    if values.dtype != _BFLOAT16 or out.dtype != np.float32:
        out[:] = values
        return
    for row in range(0, len(out), _ROWS_AT_ONCE):
        bits = out[row : row + _ROWS_AT_ONCE].view(np.uint32)
        bits[:] = values[row : row + _ROWS_AT_ONCE].view(np.uint16)
        bits <<= 16


def _common(arrays: Sequence[np.ndarray]) -> np.dtype:
    """The dtype of all; float32, which holds both 16-bit ones, where they differ."""
    dtypes = {array.dtype for array in arrays}
    return dtypes.pop() if len(dtypes) == 1 else np.dtype(np.float32)


def _fused(row: Sequence[INT4Tensor]) -> INT4Tensor:
    """Siblings as one tensor, without its codes.

    Raises:
      ValueError: their columns are in different orders.
    """
    if any(not _same_order(t.order, row[0].order) for t in row[1:]):
        raise ValueError(
            f"{len(row)} fused INT4 siblings need one order of columns, found different ones"
        )
    group = math.gcd(*(t.group for t in row))
    alike = [_regrouped(t, group) for t in row]
    dtype = _common([t.scales for t in alike])
    return INT4Tensor(
        np.empty((0, 0), np.uint8),
        np.concatenate([t.scales.astype(dtype) for t in alike]),
        np.concatenate([t.zeros for t in alike]),
        group,
        row[0].order,
    )


def _same_order(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return a is b or (a is not None and b is not None and np.array_equal(a, b))


def _regrouped(tensor: INT4Tensor, group: int) -> INT4Tensor:
    """The same values under smaller groups, without codes."""
    times = tensor.group // group
    return INT4Tensor(
        np.empty((0, 0), np.uint8),
        np.repeat(tensor.scales, times, axis=1),
        np.repeat(tensor.zeros, times, axis=1),
        group,
        tensor.order,
    )
