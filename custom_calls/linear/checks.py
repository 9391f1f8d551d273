"""What host tensors must hold before anything is packed. Each check returns the logical (N, K)."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from onecat_jax.custom_calls.linear.weights import (
    BLOCK,
    GROUP,
    HALF_UNIT,
    DenseTensor,
    FP8Tensor,
    HostMatrix,
    INT4Tensor,
    NVFP4Tensor,
)

_E4M3_NAN = 0x7F  # below the sign
_ROWS_AT_ONCE = 1024  # looked through for NaN, so that what that needs stays small
_INT4_SCALES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32))


def check_tensor(tensor: HostMatrix) -> tuple[int, int]:
    """Validates one tensor.

    Raises:
      ValueError: dtypes or shapes contradict each other, a scale or zero point is out of range, a code is NaN.
    """
    return _CHECKS[type(tensor)](tensor)


def check_groups(k: int) -> None:
    """Raises ValueError unless K is a whole number of NVFP4 scale groups."""
    if k % GROUP:
        raise ValueError(f"NVFP4 needs K to be a multiple of {GROUP}, found K = {k}")


def _check_dense(tensor: DenseTensor) -> tuple[int, int]:
    n, k = tensor.weight.shape
    return n, k


def _check_nvfp4(tensor: NVFP4Tensor) -> tuple[int, int]:
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


def _check_fp8(tensor: FP8Tensor) -> tuple[int, int]:
    codes, scales = tensor.codes, tensor.scales
    if codes.dtype != np.uint8 or codes.ndim != 2 or scales.dtype != np.float32:
        raise ValueError(
            f"FP8 needs uint8 codes [N, K] and float32 scales, found {codes.dtype} {list(codes.shape)} and {scales.dtype}"
        )
    n, k = codes.shape
    blocks = -(-k // BLOCK)
    allowed = [(), (n,), (-(-n // BLOCK), blocks), (n, blocks)]
    if scales.shape not in allowed:
        shapes = ", ".join(str(list(shape)) for shape in allowed)
        raise ValueError(
            f"FP8 codes [{n}, {k}] need scales of one of the shapes {shapes}, found {list(scales.shape)}"
        )
    if bad := sum(_nans(codes[row : row + _ROWS_AT_ONCE]) for row in range(0, n, _ROWS_AT_ONCE)):
        raise ValueError(f"{bad} of {codes.size} FP8 codes are NaN (0x7f or 0xff)")
    if bad := int((~(np.isfinite(scales) & (scales > 0))).sum()):
        raise ValueError(f"{bad} of {scales.size} FP8 scales aren't positive and finite")
    return n, k


def _nans(codes: np.ndarray) -> int:
    return int(((codes & 0x7F) == _E4M3_NAN).sum())


def _check_int4(tensor: INT4Tensor) -> tuple[int, int]:
    codes, scales, zeros, group = tensor.codes, tensor.scales, tensor.zeros, tensor.group
    if codes.dtype != np.uint8 or codes.ndim != 2 or zeros.dtype != np.uint8:
        raise ValueError(
            f"INT4 needs uint8 codes [N, K / 2] and zero points, found {codes.dtype} {list(codes.shape)} and {zeros.dtype}"
        )
    if scales.dtype not in _INT4_SCALES:
        raise ValueError(f"INT4 scales must be float16, bfloat16 or float32, found {scales.dtype}")
    n, k = codes.shape[0], 2 * codes.shape[1]
    if group < 1 or group % HALF_UNIT or k % group:
        raise ValueError(
            f"INT4 groups must be a multiple of {HALF_UNIT} k and divide K, found groups of {group} and K = {k}"
        )
    if scales.shape != (n, k // group) or zeros.shape != scales.shape:
        raise ValueError(
            f"INT4 codes [{n}, {k // 2}] in groups of {group} need scales and zero points [{n}, {k // group}], "
            f"found {list(scales.shape)} and {list(zeros.shape)}"
        )
    if bad := int((~np.isfinite(scales)).sum()):
        raise ValueError(f"{bad} of {scales.size} INT4 scales aren't finite")
    if zeros.size and (worst := int(zeros.max())) > 15:
        bad = int((zeros > 15).sum())
        raise ValueError(f"{bad} of {zeros.size} INT4 zero points exceed 15 (up to {worst})")
    _check_order(tensor.order, k)
    return n, k


def _check_order(order: np.ndarray | None, k: int) -> None:
    if order is None:
        return
    if order.dtype != np.int32 or order.shape != (k,):
        raise ValueError(
            f"the order of {k} columns must be int32 [{k}], found {order.dtype} {list(order.shape)}"
        )
    if not np.array_equal(np.sort(order), np.arange(k)):
        raise ValueError(
            f"the order of {k} columns must name each of 0 .. {k - 1} once, it names {len(np.unique(order))} "
            f"numbers from {order.min()} to {order.max()}"
        )


_CHECKS: dict[type, Callable[[Any], tuple[int, int]]] = {
    DenseTensor: _check_dense,
    NVFP4Tensor: _check_nvfp4,
    FP8Tensor: _check_fp8,
    INT4Tensor: _check_int4,
}
