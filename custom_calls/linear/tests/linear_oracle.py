"""Random weights, and what they mean in float64 numpy: written from the formats, sharing no code with the package."""

import numpy as np

from onecat_jax.custom_calls.linear import DenseTensor, NVFP4Tensor

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


def random_dense(rng: np.random.Generator, n: int, k: int) -> DenseTensor:
    return DenseTensor(rng.standard_normal((n, k)).astype(np.float32))


def e4m3(bits: np.ndarray) -> np.ndarray:
    exponent, mantissa = (bits.astype(np.int64) >> 3) & 15, bits.astype(np.int64) & 7
    value = np.where(exponent == 0, mantissa / 512.0, (1 + mantissa / 8.0) * 2.0 ** (exponent - 7))
    return np.where(bits & 0x80, -value, value)


def matrix(tensor: NVFP4Tensor | DenseTensor) -> np.ndarray:
    """The weight as float64 [N, K]."""
    if isinstance(tensor, DenseTensor):
        return tensor.weight.astype(np.float64)
    codes = np.stack([tensor.codes & 15, tensor.codes >> 4], -1).reshape(len(tensor.codes), -1)
    values = _MAGNITUDE[codes & 7] * np.where(codes & 8, -1.0, 1.0)
    return values * np.repeat(e4m3(tensor.scales), 16, axis=1) * np.float64(tensor.global_scale)


def take(tensor: NVFP4Tensor, rows: np.ndarray) -> NVFP4Tensor:
    """Some output rows of a tensor."""
    return NVFP4Tensor(tensor.codes[rows], tensor.scales[rows], tensor.global_scale)


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """Norm of the difference relative to the norm of what was expected."""
    norm = np.linalg.norm(expected)
    difference = np.linalg.norm(np.asarray(found, np.float64) - expected)
    return float(difference / norm if norm else difference)
