"""Random weights, and what they mean in float64 numpy: written from the formats, sharing no code with the package."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from onecat_jax.custom_calls.linear import (
    DenseTensor,
    FP8Tensor,
    HostMatrix,
    INT4Tensor,
    NVFP4Tensor,
)

_MAGNITUDE = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def random_nvfp4(
    rng: np.random.Generator, n: int, k: int, global_scale: float = 0.02
) -> NVFP4Tensor:
    """All codes, block scales over the whole range of E4M3 that a checkpoint can hold, zero and subnormal ones included."""
    codes = rng.integers(0, 256, (n, k // 2), dtype=np.uint8)
    scales = rng.integers(0x20, 0x48, (n, k // 16), dtype=np.uint8)
    odd = rng.random(scales.shape) < 0.05
    scales[odd] = rng.integers(0, 0x7F, int(odd.sum()), dtype=np.uint8)
    return NVFP4Tensor(codes, scales, np.float32(global_scale))


def random_dense(rng: np.random.Generator, n: int, k: int, dtype: Any = np.float32) -> DenseTensor:
    return DenseTensor(rng.standard_normal((n, k)).astype(dtype))


def random_fp8(rng: np.random.Generator, n: int, k: int, scales: str = "row") -> FP8Tensor:
    """Codes of a normal distribution's values, and of all others here and there.

    Args:
      scales: "tensor", "row", "block" of 128 x 128, or "row and block" of 128 k.
    """
    values = rng.standard_normal((n, k)).astype(np.float32) * 32
    codes = values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    odd = rng.random(codes.shape) < 0.05
    codes[odd] = rng.integers(0, 0x7F, int(odd.sum())) | rng.integers(0, 2, int(odd.sum())) << 7
    blocks = -(-k // 128)
    shapes: dict[str, tuple[int, ...]] = {
        "tensor": (),
        "row": (n,),
        "block": (-(-n // 128), blocks),
        "row and block": (n, blocks),
    }
    # of mixed magnitude, none a power of two
    drawn = 10.0 ** rng.uniform(-3, -1, shapes[scales])
    return FP8Tensor(codes, np.asarray(drawn, np.float32))


def random_int4(
    rng: np.random.Generator,
    n: int,
    k: int,
    group: int = 128,
    dtype: Any = np.float16,
    symmetric: bool = False,
    ordered: bool = False,
) -> INT4Tensor:
    """All codes and zero points, scales of both signs."""
    shape = n, k // group
    return INT4Tensor(
        codes=rng.integers(0, 256, (n, k // 2), dtype=np.uint8),
        scales=(rng.uniform(0.002, 0.05, shape) * rng.choice([-1, 1], shape)).astype(dtype),
        zeros=np.full(shape, 8, np.uint8)
        if symmetric
        else rng.integers(0, 16, shape, dtype=np.uint8),
        group=group,
        order=rng.permutation(k).astype(np.int32) if ordered else None,
    )


Maker = Callable[[np.random.Generator, int, int], HostMatrix]
MAKERS: dict[str, Maker] = {
    "dense": random_dense,
    "float16": lambda rng, n, k: random_dense(rng, n, k, np.float16),
    "bfloat16": lambda rng, n, k: random_dense(rng, n, k, ml_dtypes.bfloat16),
    "nvfp4": random_nvfp4,
    "fp8 tensor": lambda rng, n, k: random_fp8(rng, n, k, "tensor"),
    "fp8 row": lambda rng, n, k: random_fp8(rng, n, k, "row"),
    "fp8 block": lambda rng, n, k: random_fp8(rng, n, k, "block"),
    "fp8 row and block": lambda rng, n, k: random_fp8(rng, n, k, "row and block"),
    "int4 32": lambda rng, n, k: random_int4(rng, n, k, 32),
    "int4 64": lambda rng, n, k: random_int4(rng, n, k, 64, ml_dtypes.bfloat16),
    "int4 96": lambda rng, n, k: random_int4(rng, n, k, 96, np.float32),
    "int4 128": lambda rng, n, k: random_int4(rng, n, k, 128),
    "int4 128 symmetric": lambda rng, n, k: random_int4(
        rng, n, k, 128, ml_dtypes.bfloat16, symmetric=True
    ),
    "int4 128 ordered": lambda rng, n, k: random_int4(rng, n, k, 128, np.float32, ordered=True),
    "int4 row": lambda rng, n, k: random_int4(rng, n, k, k, ml_dtypes.bfloat16),
}


def e4m3(bits: np.ndarray) -> np.ndarray:
    exponent, mantissa = (bits.astype(np.int64) >> 3) & 15, bits.astype(np.int64) & 7
    value = np.where(exponent == 0, mantissa / 512.0, (1 + mantissa / 8.0) * 2.0 ** (exponent - 7))
    return np.where(bits & 0x80, -value, value)


def matrix(tensor: HostMatrix) -> np.ndarray:
    """The weight as float64 [N, K]."""
    if isinstance(tensor, DenseTensor):
        return tensor.weight.astype(np.float64)
    if isinstance(tensor, FP8Tensor):
        return _fp8_matrix(tensor)
    codes = np.stack([tensor.codes & 15, tensor.codes >> 4], -1).reshape(len(tensor.codes), -1)
    if isinstance(tensor, INT4Tensor):
        return _int4_matrix(codes, tensor)
    values = _MAGNITUDE[codes & 7] * np.where(codes & 8, -1.0, 1.0)
    return values * np.repeat(e4m3(tensor.scales), 16, axis=1) * np.float64(tensor.global_scale)


def _fp8_matrix(tensor: FP8Tensor) -> np.ndarray:
    values, scales = e4m3(tensor.codes), tensor.scales.astype(np.float64)
    rows, columns = (np.arange(size) for size in values.shape)
    if scales.ndim == 2:
        each = 1 if len(scales) == len(values) else 128
        scales = scales[np.ix_(rows // each, columns // 128)]
    return values * (scales[:, None] if scales.ndim == 1 else scales)


def _int4_matrix(codes: np.ndarray, tensor: INT4Tensor) -> np.ndarray:
    n, k = codes.shape
    found = np.full((n, k), np.nan)
    for column in range(k):
        group = column // tensor.group
        feature = column if tensor.order is None else tensor.order[column]
        steps = codes[:, column].astype(np.int64) - tensor.zeros[:, group].astype(np.int64)
        found[:, feature] = steps * tensor.scales[:, group].astype(np.float64)
    return found


def take(tensor: HostMatrix, rows: np.ndarray) -> HostMatrix:
    """Some output rows of a tensor."""
    if isinstance(tensor, NVFP4Tensor):
        return NVFP4Tensor(tensor.codes[rows], tensor.scales[rows], tensor.global_scale)
    if isinstance(tensor, INT4Tensor):
        parts = tensor.codes[rows], tensor.scales[rows], tensor.zeros[rows]
        return INT4Tensor(*parts, tensor.group, tensor.order)
    if isinstance(tensor, DenseTensor):
        return DenseTensor(tensor.weight[rows])
    scales = tensor.scales
    if scales.ndim == 2 and len(scales) < len(tensor.codes):
        scales = scales[np.asarray(rows) // 128]
    elif scales.ndim:
        scales = scales[rows]
    return FP8Tensor(tensor.codes[rows], scales)


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """Norm of the difference relative to the norm of what was expected."""
    norm = np.linalg.norm(expected)
    difference = np.linalg.norm(np.asarray(found, np.float64) - expected)
    return float(difference / norm if norm else difference)


def product_error(found: Any, x: Any, weight: np.ndarray) -> float:
    """Largest difference of one output from the float64 product, relative to the norms of the two rows that it is made of."""
    x = np.asarray(x, np.float64)
    norms = np.outer(np.linalg.norm(x, axis=1), np.linalg.norm(weight, axis=1))
    difference = np.abs(np.asarray(found, np.float64) - x @ weight.T)
    return float(np.max(difference / np.where(norms == 0, 1, norms)))
