"""Host tensors of a checkpoint -> one device weight per layer kind."""

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array

from onecat_jax.custom_calls.linear.packing import pack, physical_rows
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
        """Copies: on CPU an array could otherwise share its memory with numpy, and never be donated."""
        return jax.device_put(array, self.device, may_alias=False)


class _DenseStack(_Stack):
    """Dense layers, written into place one by one; or placed one by one where they stay separate."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.route.plan(LinearDescriptor("dense", self.n, self.k, self.dtype))
        self.separate: list[Array] = []
        shape = (self.n, self.k) if self.route.separate else (self.layers, self.n, self.k)
        self.host = np.empty(shape, self.dtype)

    def write(self, at: int, row: Row) -> None:
        first = 0
        matrix = self.host if self.route.separate else self.host[at]
        for tensor in _all(row, DenseTensor):
            rows = tensor.weight.shape[0]
            matrix[first : first + rows] = tensor.weight
            first += rows
        if self.route.separate:
            self.separate.append(jax.block_until_ready(self.place(matrix)))

    def placed(self) -> Dense:
        return Dense(tuple(self.separate) if self.route.separate else self.place(self.host))


class _NVFP4Stack(_Stack):
    """NVFP4 layers, packed one by one."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        route = self.route.plan(LinearDescriptor("nvfp4", self.n, self.k, self.dtype))
        self.layout = LAYOUT_OF_ROUTE[route.name]
        rows = self.n if self.layout == "rows" else physical_rows(self.n)
        self.global_scale = np.zeros((self.layers, rows), np.float32)
        self.codes = self.scales = np.empty(0, np.uint8)  # the first layer says how large they are

    def write(self, at: int, row: Row) -> None:
        tensors = _all(row, NVFP4Tensor)
        codes, scales = pack(
            _concatenated([t.codes for t in tensors]),
            _concatenated([t.scales for t in tensors]),
            self.layout,
        )
        if self.layers == 1:
            self.codes, self.scales = codes[None], scales[None]
        elif at == 0:
            self.codes = np.empty((self.layers, *codes.shape), np.uint8)
            self.scales = np.empty((self.layers, *scales.shape), np.uint8)
        if self.layers > 1:
            self.codes[at], self.scales[at] = codes, scales
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
