"""Host tensors of a checkpoint -> one device weight per layer kind."""

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

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

Tensor = TypeVar("Tensor")
Rows = Sequence[Sequence[Tensor]]
Layers = Rows[DenseTensor | NVFP4Tensor]
_E4M3_NAN = 0x7F  # and everything above it is negative


def build_linear(layers: Layers, *, route: LinearRoute, dtype: Any) -> Linear:
    """Fuses, stacks, packs and places the weights of one layer kind on the default device.

    Args:
      layers: outer, the layers of the stack; inner, siblings that are concatenated along N. One kind throughout.
      route: what the weights are packed for.
      dtype: dtype of the activations; dense weights are stored in it.

    Raises:
      ValueError: mixed kinds, shapes that differ between layers or contradict each other, scales that aren't a
        non-negative E4M3 number, a global scale that isn't positive and finite.
    """
    dense = [[t for t in row if isinstance(t, DenseTensor)] for row in layers]
    nvfp4 = [[t for t in row if isinstance(t, NVFP4Tensor)] for row in layers]
    if any(dense) and not any(nvfp4):
        return _build_dense(dense, route, dtype)
    if any(nvfp4) and not any(dense):
        return _build_nvfp4(nvfp4, route, dtype)
    found = "DenseTensor and NVFP4Tensor" if any(dense) else "nothing"
    raise ValueError(f"a stack needs weights of one kind, found {found}")


def _one_shape(shapes: Sequence[tuple[int, int]]) -> tuple[int, int]:
    if len(set(shapes)) != 1:
        raise ValueError(f"all layers of a stack need the same shape, found {sorted(set(shapes))}")
    return shapes[0]


def _fused_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """Shape of siblings concatenated along N."""
    ks = {shape[1] for shape in shapes}
    if len(ks) != 1:
        raise ValueError(f"fused siblings need the same K, found {sorted(ks)}")
    return sum(shape[0] for shape in shapes), ks.pop()


def _build_dense(layers: Rows[DenseTensor], route: LinearRoute, dtype: Any) -> Dense:
    n, k = _one_shape([_fused_shape([t.weight.shape for t in row]) for row in layers])
    route.plan(LinearDescriptor("dense", n, k, dtype))
    matrices = (np.concatenate([t.weight for t in row]) for row in layers)
    if route.separate:
        return Dense(tuple(jnp.asarray(matrix, dtype) for matrix in matrices))
    stack = np.empty((len(layers), n, k), dtype)
    for at, matrix in enumerate(matrices):
        stack[at] = matrix
    return Dense(jax.device_put(stack))


def _build_nvfp4(layers: Rows[NVFP4Tensor], route: LinearRoute, dtype: Any) -> NVFP4:
    shapes = [_fused_shape([_check(t) for t in row]) for row in layers]
    n, k = _one_shape(shapes)
    layout = LAYOUT_OF_ROUTE[route.plan(LinearDescriptor("nvfp4", n, k, dtype)).name]
    rows = n if layout == "rows" else physical_rows(n)
    packed = [_pack_row(row, layout) for row in layers]
    global_scale = np.zeros((len(layers), rows), np.float32)
    for at, row in enumerate(layers):
        global_scale[at, :n] = np.concatenate(
            [np.full(t.codes.shape[0], t.global_scale, np.float32) for t in row]
        )
    return NVFP4(
        codes=jax.device_put(np.stack([codes for codes, _ in packed])),
        scales=jax.device_put(np.stack([scales for _, scales in packed])),
        global_scale=jax.device_put(global_scale),
        n=n,
        k=k,
        layout=layout,
    )


def _pack_row(row: Sequence[NVFP4Tensor], layout: str) -> tuple[np.ndarray, np.ndarray]:
    codes = np.concatenate([t.codes for t in row])
    scales = np.concatenate([t.scales for t in row])
    return pack(codes, scales, layout)


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
