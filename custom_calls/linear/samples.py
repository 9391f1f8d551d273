"""Random weights of every kind, for benches and the self-test."""

import numpy as np

from onecat_jax.custom_calls.linear.weights import (
    DenseTensor,
    FP8Tensor,
    HostMatrix,
    INT4Tensor,
    NVFP4Tensor,
)

SAMPLES = (
    "nvfp4",
    "fp8 row",
    "fp8 block",
    "int4 128",
    "int4 32",
    "float16",
)  # kind, scales or group


def random_tensor(rng: np.random.Generator, kind: str, n: int, k: int) -> HostMatrix:
    """A matrix of ordinary values; `kind` is one of SAMPLES."""
    name, _, detail = kind.partition(" ")
    if name == "float16":
        return DenseTensor(rng.standard_normal((n, k), np.float32).astype(np.float16))
    codes = rng.integers(0, 256, (n, k // 2), dtype=np.uint8)
    if name == "nvfp4":
        scales = rng.integers(0x30, 0x40, (n, k // 16), dtype=np.uint8)
        return NVFP4Tensor(codes, scales, np.float32(0.01))
    if name == "fp8":
        shape = (n,) if detail == "row" else (-(-n // 128), -(-k // 128))
        bits = rng.integers(0, 0x50, (n, k), dtype=np.uint8)
        bits |= rng.integers(0, 2, (n, k), dtype=np.uint8) << 7
        return FP8Tensor(bits, rng.uniform(0.01, 0.02, shape).astype(np.float32))
    group = int(detail)
    scales = rng.uniform(0.01, 0.02, (n, k // group)).astype(np.float16)
    return INT4Tensor(codes, scales, np.full(scales.shape, 8, np.uint8), group)
