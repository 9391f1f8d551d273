"""Decodes one module of any weight format in plain numpy, from the description of the formats.

An oracle for the loaders, written apart from them and from the packages: it finds the format by
tensor names and dtypes, works in float64 and takes no short cut.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

BLOCK = 128
# Column j of eight lies in nibble AWQ_NIBBLE[j] of its word.
AWQ_NIBBLE = (0, 4, 1, 5, 2, 6, 3, 7)
IN_ORDER = tuple(range(8))
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])

Parts = Mapping[str, np.ndarray]


def e4m3(codes: np.ndarray) -> np.ndarray:
    """float64 values of E4M3FN bits: bias 7, no infinities, subnormals of 2^-9."""
    bits = codes.view(np.uint8).astype(np.int64)
    exponent, mantissa = (bits >> 3) & 15, bits & 7
    normal = (8 + mantissa) * 2.0 ** (exponent - 10)
    magnitude = np.where(exponent > 0, normal, mantissa * 2.0**-9)
    magnitude = np.where(bits & 127 == 127, np.nan, magnitude)
    return np.where(bits & 128, -magnitude, magnitude)


def e2m1(packed: np.ndarray) -> np.ndarray:
    """float64 [N, K] of bytes [N, K/2]; the low nibble is the even k."""
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)
    return E2M1[codes & 7] * np.where(codes & 8, -1, 1)


def nibbles(words: np.ndarray, order: tuple[int, ...] = IN_ORDER) -> np.ndarray:
    """uint8 [R, 8 C] of int32 words [R, C]."""
    shifts = 4 * np.array(order, np.uint32)
    fields = (words.view(np.uint32)[..., None] >> shifts) & 15
    return fields.reshape(words.shape[0], -1).astype(np.uint8)


def spread(groups: np.ndarray, columns: int) -> np.ndarray:
    """[N, K] of one value per group [N, K/g]."""
    return np.repeat(groups.astype(np.float64), columns // groups.shape[1], axis=1)


def blocks(scales: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """[N, K] of one value per block of 128 by 128, in whatever rank they are stored."""
    rows, columns = (-(-size // BLOCK) for size in shape)
    grid = scales.astype(np.float64).reshape(rows, columns)
    whole = np.repeat(np.repeat(grid, BLOCK, axis=0), BLOCK, axis=1)
    return whole[: shape[0], : shape[1]]


def decode_nvfp4(parts: Parts) -> np.ndarray:
    """ModelOpt's factor multiplies, that of compressed-tensors divides: the name decides."""
    packed = parts["weight_packed"] if "weight_packed" in parts else parts["weight"]
    values = e2m1(packed)
    values = values * spread(e4m3(parts["weight_scale"]), values.shape[1])
    if "weight_scale_2" in parts:
        return values * np.float64(parts["weight_scale_2"])
    return values / np.float64(parts["weight_global_scale"][0])


def decode_fp8(parts: Parts) -> np.ndarray:
    """One scale for all, per row [N] or [N, 1], or per block; the number of scales decides."""
    values = e4m3(parts["weight"])
    scale = parts["weight_scale_inv"] if "weight_scale_inv" in parts else parts["weight_scale"]
    if scale.size == 1:
        return values * scale.astype(np.float64).reshape(1, 1)
    if scale.size == values.shape[0]:
        return values * scale.astype(np.float64).reshape(-1, 1)
    return values * blocks(scale, values.shape)


def decode_compressed_int4(parts: Parts) -> np.ndarray:
    """Codes along K, zero points along N, both unsigned with 8 added; columns may name their group."""
    rows, columns = (int(size) for size in parts["weight_shape"])
    codes = nibbles(parts["weight_packed"])[:, :columns].astype(np.float64)
    scales = parts["weight_scale"].astype(np.float64)
    zeros = np.full(scales.shape, 8.0)
    if "weight_zero_point" in parts:
        zeros = nibbles(parts["weight_zero_point"].T).T[:rows].astype(np.float64)
    if "weight_g_idx" in parts:
        group = parts["weight_g_idx"]
        return (codes - zeros[:, group]) * scales[:, group]
    return (codes - spread(zeros, columns)) * spread(scales, columns)


def decode_awq(parts: Parts) -> np.ndarray:
    """Stored [K, N]; unsigned codes and zero points."""
    codes, zeros = (nibbles(parts[name], AWQ_NIBBLE) for name in ("qweight", "qzeros"))
    columns = codes.shape[0]
    return (codes.T - spread(zeros.T, columns)) * spread(parts["scales"].T, columns)


def decode_quark(parts: Parts, config: Mapping[str, Any]) -> np.ndarray:
    """Stored [K, N] with N padded to 8; int4 in two's complement, zero points as well."""
    reorder = config["export"]["pack_method"] == "reorder"
    order = AWQ_NIBBLE if reorder else IN_ORDER
    scales = parts["weight_scale"].T
    rows, columns = scales.shape[0], parts["weight"].shape[0]
    codes = nibbles(parts["weight"], order).T[:rows].astype(np.int64)
    zeros = nibbles(parts["weight_zero_point"], order).T[:rows].astype(np.int64)
    if config["global_quant_config"]["weight"]["dtype"] == "int4":
        codes, zeros = (codes ^ 8) - 8, (zeros ^ 8) - 8
    return (codes - spread(zeros, columns)) * spread(scales, columns)


def decode(parts: Parts, config: Mapping[str, Any]) -> np.ndarray:
    """float64 [N, K] of the tensors of one module.

    Raises:
      ValueError: the names and dtypes are those of no known format.
    """
    if "weight_scale_2" in parts or "weight_global_scale" in parts:
        return decode_nvfp4(parts)
    if "qweight" in parts:
        return decode_awq(parts)
    if "weight_packed" in parts:
        return decode_compressed_int4(parts)
    if parts["weight"].dtype == np.int32:
        return decode_quark(parts, config)
    if parts["weight"].dtype.itemsize == 1:
        return decode_fp8(parts)
    raise ValueError(f"tensors {sorted(parts)} are those of no known format")
