"""Writes linears in every weight format, from the formats' descriptions and without the engine's code.

`pack_*` put given codes, scales and zero points into stored tensors; test_formats_writers holds them against the bytes that the
formats' own packages wrote. `FORMATS` quantises matrices on top of that: rounding to nearest, which makes a valid checkpoint
and nothing more. Values are decoded here from codes and scales, in float64.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from checkpoints import quantise

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
BLOCK = 128
INTERLEAVED = (0, 4, 1, 5, 2, 6, 3, 7)  # nibble that holds each of a word's columns
SEQUENTIAL = tuple(range(8))

Parts = dict[str, np.ndarray]


@dataclass(frozen=True)
class Written:
    """A stored linear and its values, float64 [N, K]."""

    parts: Parts
    values: np.ndarray


def words(codes: np.ndarray, places: Sequence[int] = SEQUENTIAL) -> np.ndarray:
    """int32 [R, ceil(C / 8)] of codes [R, C] below 16; what is missing to whole words is zero."""
    rows, columns = codes.shape
    padded = np.zeros((rows, -(-columns // 8) * 8), np.int64)
    padded[:, :columns] = codes
    out = np.zeros((rows, padded.shape[1] // 8), np.int64)
    for column, place in enumerate(places):
        out |= padded[:, column::8] << (4 * place)
    return out.astype(np.uint32).view(np.int32)


def pack_awq(codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None) -> Parts:
    """codes [N, K], scales and zeros [N, K/g]."""
    parts = {"qweight": words(codes.T, INTERLEAVED), "scales": np.ascontiguousarray(scales.T)}
    return parts if zeros is None else parts | {"qzeros": words(zeros.T, INTERLEAVED)}


def pack_quark(
    codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray, interleaved: bool, signed: bool
) -> Parts:
    """The same unsigned codes; signed ones are stored 8 less, in two's complement."""
    places, minus = INTERLEAVED if interleaved else SEQUENTIAL, 8 if signed else 0
    return {
        "weight": words((codes.T.astype(int) - minus) & 15, places),
        "weight_scale": np.ascontiguousarray(scales.T),
        "weight_zero_point": words((zeros.T.astype(int) - minus) & 15, places),
    }


def pack_compressed(
    codes: np.ndarray,
    scales: np.ndarray,
    zeros: np.ndarray | None = None,
    groups: np.ndarray | None = None,
) -> Parts:
    """groups: [K] the group of every column, for activation order."""
    parts = {
        "weight_packed": words(codes),
        "weight_scale": np.ascontiguousarray(scales),
        "weight_shape": np.array(codes.shape, np.int64),
    }
    if zeros is not None:
        parts["weight_zero_point"] = np.ascontiguousarray(words(zeros.T).T)
    if groups is not None:
        parts["weight_g_idx"] = groups.astype(np.int32)
    return parts


@dataclass(frozen=True)
class Rounded:
    """An INT4 matrix: value = (code - zero) * scale in the group of k."""

    codes: np.ndarray  # [N, K] below 16
    scales: np.ndarray  # [N, K/g]
    zeros: np.ndarray  # [N, K/g] below 16
    groups: np.ndarray  # [K]

    @property
    def values(self) -> np.ndarray:
        zeros, scales = self.zeros.astype(np.float64), self.scales.astype(np.float64)
        return (self.codes - zeros[:, self.groups]) * scales[:, self.groups]


def round_int4(
    matrix: np.ndarray, group: int, dtype: Any, symmetric: bool, order: np.ndarray | None = None
) -> Rounded:
    """order: [K] columns in the order of their groups."""
    n, k = matrix.shape
    columns = np.arange(k) if order is None else order
    grouped = matrix[:, columns].reshape(n, k // group, group).astype(np.float64)
    low, high = np.minimum(grouped.min(2), 0), np.maximum(grouped.max(2), 0)
    scales = np.abs(grouped).max(2) / 7 if symmetric else (high - low) / 15
    scales = np.maximum(scales, 1e-6).astype(dtype)
    steps = scales.astype(np.float64)
    zeros = np.full(scales.shape, 8.0) if symmetric else np.clip(np.rint(-low / steps), 0, 15)
    groups = np.empty(k, np.int64)
    groups[columns] = np.arange(k) // group
    codes = np.rint(matrix / steps[:, groups]) + zeros[:, groups]
    return Rounded(np.clip(codes, 0, 15).astype(np.uint8), scales, zeros.astype(np.uint8), groups)


def awq(matrix: np.ndarray, group: int = 128, symmetric: bool = False) -> Written:
    r = round_int4(matrix, group, np.float16, symmetric)
    return Written(pack_awq(r.codes, r.scales, None if symmetric else r.zeros), r.values)


def quark(matrix: np.ndarray, group: int, interleaved: bool, signed: bool) -> Written:
    r = round_int4(matrix, group, BF16, symmetric=signed)
    return Written(pack_quark(r.codes, r.scales, r.zeros, interleaved, signed), r.values)


def compressed_int4(
    matrix: np.ndarray, group: int, symmetric: bool, order: str = "", dtype: Any = BF16
) -> Written:
    """order: "", "drawn", "natural", or "unset" as exporters write it that don't reorder."""
    k = matrix.shape[1]
    columns = np.random.default_rng(k).permutation(k) if order == "drawn" else None
    r = round_int4(matrix, group, dtype, symmetric, columns)
    groups = None if not order else np.full(k, -1) if order == "unset" else r.groups
    zeros = None if symmetric else r.zeros
    return Written(pack_compressed(r.codes, r.scales, zeros, groups), r.values)


def _e4m3(matrix: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    codes = (matrix / scales).astype(np.float32).astype(E4M3)
    return codes, codes.astype(np.float64) * scales.astype(np.float64)


def _amax(matrix: np.ndarray, axis: Any) -> np.ndarray:
    return np.maximum(np.abs(matrix).max(axis), 1e-6) / 448


def fp8_tensor(matrix: np.ndarray) -> Written:
    scale = _amax(matrix, None).astype(np.float32)
    codes, values = _e4m3(matrix, scale)
    scales = {"weight_scale": np.asarray(scale), "input_scale": np.asarray(np.float32(0.02))}
    return Written({"weight": codes} | scales, values)


def fp8_rows(matrix: np.ndarray, dtype: Any, column: bool) -> Written:
    scales = _amax(matrix, 1).astype(dtype)
    codes, values = _e4m3(matrix, scales[:, None].astype(np.float32))
    return Written({"weight": codes, "weight_scale": scales[:, None] if column else scales}, values)


def fp8_blocks(matrix: np.ndarray, dtype: Any, suffix: str, four: bool = False) -> Written:
    n, k = matrix.shape
    rows, columns = -(-n // BLOCK), -(-k // BLOCK)
    padded = np.zeros((rows * BLOCK, columns * BLOCK))
    padded[:n, :k] = matrix
    scales = _amax(padded.reshape(rows, BLOCK, columns, BLOCK), (1, 3)).astype(dtype)
    spread = np.repeat(np.repeat(scales.astype(np.float32), BLOCK, 0), BLOCK, 1)[:n, :k]
    codes, values = _e4m3(matrix, spread)
    stored = scales.reshape(rows, 1, columns, 1) if four else scales
    return Written({"weight": codes, suffix: stored}, values)


def nvfp4(matrix: np.ndarray, compressed: bool, tile: int = 1) -> Written:
    """tile: rows are filled up to a multiple of it."""
    q = quantise(matrix.astype(np.float32))
    codes, scales = (np.pad(a, ((0, -len(a) % tile), (0, 0))) for a in (q.codes, q.scales))
    if not compressed:
        factor = {"weight_scale_2": np.asarray(q.multiplier)}
        return Written({"weight": codes, "weight_scale": scales} | factor, q.values())
    factor = {"weight_global_scale": np.asarray([np.float32(1) / q.multiplier])}
    return Written({"weight_packed": codes, "weight_scale": scales} | factor, q.values())


def _modelopt(algorithm: str, dense: Sequence[str]) -> Mapping[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": list(dense)}


def _compressed(form: str, weights: Mapping[str, Any], dense: Sequence[str]) -> Mapping[str, Any]:
    group = {"targets": ["Linear"], "format": form, "weights": weights}
    record = {"quant_method": "compressed-tensors", "format": form, "ignore": list(dense)}
    return record | {"config_groups": {"group_0": group}, "quantization_status": "compressed"}


_NVFP4 = {"num_bits": 4, "type": "float", "group_size": 16}


def _fp8(strategy: str) -> Mapping[str, Any]:
    block = {"block_structure": [BLOCK, BLOCK]} if strategy == "block" else {}
    return {"num_bits": 8, "type": "float", "strategy": strategy} | block


def _int4(group: int, symmetric: bool) -> Mapping[str, Any]:
    scheme = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group}
    return scheme | {"symmetric": symmetric}


def _quark(group: int, dtype: str, order: str, dense: Sequence[str]) -> Mapping[str, Any]:
    weight = {"dtype": dtype, "qscheme": "per_group", "group_size": group, "ch_axis": -1}
    weight |= {"symmetric": dtype == "int4"}
    return {
        "quant_method": "quark",
        "export": {"pack_method": order, "weight_format": "real_quantized"},
        "global_quant_config": {"weight": weight, "input_tensors": None},
        "exclude": list(dense),
    }


def _awq(group: int, zeros: bool, dense: Sequence[str]) -> Mapping[str, Any]:
    record = {"quant_method": "awq", "bits": 4, "version": "gemm", "group_size": group}
    return record | {"zero_point": zeros, "modules_to_not_convert": list(dense)}


def _block(dense: Sequence[str]) -> Mapping[str, Any]:
    record = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    return record | {"weight_block_size": [BLOCK, BLOCK], "modules_to_not_convert": list(dense)}


@dataclass(frozen=True)
class Format:
    """One format: how a matrix is stored, and the record about it given the modules that stay dense."""

    write: Callable[[np.ndarray], Written]
    record: Callable[[Sequence[str]], Mapping[str, Any]]


FORMATS = {
    "fp8 tensor": Format(fp8_tensor, partial(_modelopt, "FP8")),
    "fp8 row": Format(
        partial(fp8_rows, dtype=np.float32, column=False),
        partial(_modelopt, "FP8_PER_CHANNEL_PER_TOKEN"),
    ),
    "fp8 channel": Format(
        partial(fp8_rows, dtype=BF16, column=True),
        partial(_compressed, "float-quantized", _fp8("channel")),
    ),
    "fp8 block": Format(partial(fp8_blocks, dtype=BF16, suffix="weight_scale_inv"), _block),
    "fp8 block, compressed": Format(
        partial(fp8_blocks, dtype=BF16, suffix="weight_scale"),
        partial(_compressed, "float-quantized", _fp8("block")),
    ),
    "fp8 block, modelopt": Format(
        partial(fp8_blocks, dtype=np.float32, suffix="weight_scale", four=True),
        partial(_modelopt, "fp8_pb_wo"),
    ),
    "awq 128": Format(awq, partial(_awq, 128, True)),
    "awq 32": Format(partial(awq, group=32), partial(_awq, 32, True)),
    "awq symmetric": Format(partial(awq, group=64, symmetric=True), partial(_awq, 64, False)),
    "quark int4 reorder": Format(
        partial(quark, group=128, interleaved=True, signed=True),
        partial(_quark, 128, "int4", "reorder"),
    ),
    "quark int4 order": Format(
        partial(quark, group=32, interleaved=False, signed=True),
        partial(_quark, 32, "int4", "order"),
    ),
    "quark uint4 reorder": Format(
        partial(quark, group=32, interleaved=True, signed=False),
        partial(_quark, 32, "uint4", "reorder"),
    ),
    "quark uint4 order": Format(
        partial(quark, group=128, interleaved=False, signed=False),
        partial(_quark, 128, "uint4", "order"),
    ),
    "int4": Format(
        partial(compressed_int4, group=128, symmetric=True),
        partial(_compressed, "pack-quantized", _int4(128, True)),
    ),
    "int4 zeros": Format(
        partial(compressed_int4, group=32, symmetric=False, dtype=np.float32),
        partial(_compressed, "pack-quantized", _int4(32, False)),
    ),
    "int4 natural order": Format(
        partial(compressed_int4, group=64, symmetric=True, order="natural"),
        partial(_compressed, "pack-quantized", _int4(64, True)),
    ),
    "int4 order unset": Format(
        partial(compressed_int4, group=128, symmetric=True, order="unset", dtype=np.float16),
        partial(_compressed, "pack-quantized", _int4(128, True)),
    ),
    "int4 order": Format(
        partial(compressed_int4, group=64, symmetric=False, order="drawn"),
        partial(_compressed, "pack-quantized", _int4(64, False)),
    ),
    "nvfp4 modelopt": Format(partial(nvfp4, compressed=False), partial(_modelopt, "NVFP4")),
    "nvfp4 compressed": Format(
        partial(nvfp4, compressed=True), partial(_compressed, "nvfp4-pack-quantized", _NVFP4)
    ),
    "nvfp4 padded": Format(
        partial(nvfp4, compressed=True, tile=128),
        partial(_compressed, "nvfp4-pack-quantized", _NVFP4),
    ),
}
