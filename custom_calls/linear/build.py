"""Host tensors of a checkpoint -> one device weight per layer kind."""

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array

from onecat_jax.custom_calls.linear.packing import pack_into, packed_shapes, physical_rows
from onecat_jax.custom_calls.linear.routes import (
    LAYOUT_OF_ROUTE,
    LinearDescriptor,
    LinearRoute,
    check_groups,
)
from onecat_jax.custom_calls.linear.weights import (
    GROUP,
    NVFP4,
    Dense,
    DenseTensor,
    Linear,
    NVFP4Tensor,
)

Tensor = TypeVar("Tensor", DenseTensor, NVFP4Tensor)
Row = Sequence[DenseTensor | NVFP4Tensor]  # siblings of one layer, concatenated along N
_E4M3_NAN = 0x7F  # and everything above it is negative
_ALIGNMENT = 64  # bytes: memory so aligned is taken over by a CPU device as it is


def build_linear(
    layers: Sequence[Row], *, route: LinearRoute, dtype: Any, device: jax.Device | None = None
) -> Linear:
    """Fuses, stacks, packs and places the weights of one layer kind.

    Args:
      layers: outer, the layers of the stack, each asked for once, in order, and let go before the next; inner, siblings that
        are concatenated along N. One kind throughout.
      route: what the weights are packed for.
      dtype: dtype of the activations; dense weights are stored in it.
      device: where the weight goes; the default device if none is given.

    Raises:
      ValueError: mixed kinds, shapes that differ between layers or contradict each other, scales that aren't a
        non-negative E4M3 number, a global scale that isn't positive and finite.
    """
    stack: _DenseStack | _NVFP4Stack | None = None
    for at, row in enumerate(layers):
        shape = _fused_shape(row)
        if stack is None:
            kind = _DenseStack if isinstance(row[0], DenseTensor) else _NVFP4Stack
            stack = kind(len(layers), *shape, route, dtype, device)
        stack.check(shape)
        stack.write(at, row)
    if stack is None:
        raise ValueError("a stack needs weights of one kind, found nothing")
    return stack.placed()


def _fused_shape(row: Row) -> tuple[int, int]:
    """Logical (N, K) of siblings concatenated along N."""
    if not row:
        raise ValueError("a stack needs weights of one kind, found nothing")
    shapes = [t.weight.shape if isinstance(t, DenseTensor) else _check(t) for t in row]
    ks = {shape[1] for shape in shapes}
    if len(ks) != 1:
        raise ValueError(f"fused siblings need the same K, found {sorted(ks)}")
    return sum(shape[0] for shape in shapes), ks.pop()


def _all(row: Row, kind: type[Tensor]) -> list[Tensor]:
    found: list[Tensor] = [tensor for tensor in row if isinstance(tensor, kind)]
    if len(found) < len(row):
        raise ValueError("a stack needs weights of one kind, found DenseTensor and NVFP4Tensor")
    return found


class _Stack:
    """What both kinds share: the layers' common shape, and where they go."""

    def __init__(
        self, layers: int, n: int, k: int, route: LinearRoute, dtype: Any, device: jax.Device | None
    ):
        self.layers, self.n, self.k = layers, n, k
        self.route, self.dtype, self.device = route, np.dtype(dtype), device

    def check(self, shape: tuple[int, int]) -> None:
        if shape != (self.n, self.k):
            both = sorted({shape, (self.n, self.k)})
            raise ValueError(f"all layers of a stack need the same shape, found {both}")

    def place(self, array: np.ndarray) -> Array:
        return jax.device_put(array, self.device)


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Uninitialised host memory. It is written once and never after it is placed, for a CPU device doesn't copy it."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % _ALIGNMENT
    return raw[first : first + size].view(dtype).reshape(shape)


class _DenseStack(_Stack):
    """Dense layers, written into place one by one; or placed one by one where they stay separate."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.route.plan(LinearDescriptor("dense", self.n, self.k, self.dtype))
        self.separate: list[Array] = []
        self.host = None if self.route.separate else self._new(self.layers)

    def _new(self, *layers: int) -> np.ndarray:
        return _empty((*layers, self.n, self.k), self.dtype)

    def write(self, at: int, row: Row) -> None:
        matrix = self._new() if self.host is None else self.host[at]
        first = 0
        for tensor in _all(row, DenseTensor):
            rows = tensor.weight.shape[0]
            matrix[first : first + rows] = tensor.weight
            first += rows
        if self.host is None:
            self.separate.append(self.place(matrix))

    def placed(self) -> Dense:
        return Dense(tuple(self.separate) if self.host is None else self.place(self.host))


class _NVFP4Stack(_Stack):
    """NVFP4 layers, packed one by one."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        route = self.route.plan(LinearDescriptor("nvfp4", self.n, self.k, self.dtype))
        self.layout = LAYOUT_OF_ROUTE[route.name]
        codes, scales = packed_shapes(self.n, self.k, self.layout)
        self.codes = _empty((self.layers, *codes), np.dtype(np.uint8))
        self.scales = _empty((self.layers, *scales), np.dtype(np.uint8))
        rows = self.n if self.layout == "rows" else physical_rows(self.n)
        self.global_scale = np.zeros((self.layers, rows), np.float32)

    def write(self, at: int, row: Row) -> None:
        tensors = _all(row, NVFP4Tensor)
        pack_into(
            (self.codes[at], self.scales[at]),
            _concatenated([t.codes for t in tensors]),
            _concatenated([t.scales for t in tensors]),
            self.layout,
        )
        first = 0
        for tensor in tensors:
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


def _concatenated(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _check(tensor: NVFP4Tensor) -> tuple[int, int]:
    """Validates one tensor and returns its logical (N, K)."""
    codes, scales = tensor.codes, tensor.scales
    if codes.dtype != np.uint8 or scales.dtype != np.uint8:
        raise ValueError(
            f"NVFP4 codes and scales must be uint8, found {codes.dtype} and {scales.dtype}"
        )
    n, k = codes.shape[0], 2 * codes.shape[1]
    check_groups(k)
    if scales.shape != (n, k // GROUP):
        raise ValueError(
            f"codes [{n}, {k // 2}] need scales [{n}, {k // GROUP}], found {list(scales.shape)}"
        )
    if n and (worst := int(scales.max())) >= _E4M3_NAN:
        bad = int((scales >= _E4M3_NAN).sum())
        raise ValueError(f"{bad} block scales are negative or NaN (bits up to {worst:#04x})")
    if not (np.isfinite(tensor.global_scale) and tensor.global_scale > 0):
        raise ValueError(
            f"the global scale must be positive and finite, found {tensor.global_scale}"
        )
    return n, k
