"""Writes matrices in the weight formats with numpy, for tests that need other sizes than the goldens.

What these functions write is held against the packages' own files by test_format_packers.py; nothing
of the engine is used. Rounding is to nearest with scales from the extremes. Every packer returns the
tensors of one module by local name; `format_decode.decode` gives their values back. NVFP4 is written
by checkpoints.py.
"""

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
from format_decode import AWQ_NIBBLE, BLOCK, IN_ORDER

Parts = dict[str, np.ndarray]
BlockNaming = Literal["official", "compressed-tensors", "modelopt"]
FP8_MAX = 448.0
E4M3 = ml_dtypes.float8_e4m3fn


@dataclass(frozen=True)
class Int4:
    """value = (code - zero) * scale, one zero and scale for each run of columns."""

    codes: np.ndarray  # uint8 [N, K], 0..15
    zeros: np.ndarray  # uint8 [N, K/g], 8 where the format has none
    scales: np.ndarray  # float16 or bfloat16 [N, K/g]


def round_int4(weight: np.ndarray, group: int, zero_points: bool, dtype: Any) -> Int4:
    """Rounds [N, K]; `zero_points` uses the sixteen codes between the extremes of each group."""
    grouped = weight.astype(np.float64).reshape(weight.shape[0], -1, group)
    if zero_points:
        low, high = np.minimum(grouped.min(2), 0), np.maximum(grouped.max(2), 0)
        scales = np.maximum((high - low) / 15, 1e-6).astype(dtype)
        zeros = np.clip(np.rint(-low / scales.astype(np.float64)), 0, 15)
    else:
        scales = np.maximum(np.abs(grouped).max(2) / 7.5, 1e-6).astype(dtype)
        zeros = np.full(scales.shape, 8.0)
    steps = np.rint(grouped / scales.astype(np.float64)[..., None]) + zeros[..., None]
    codes = np.clip(steps, 0, 15).astype(np.uint8).reshape(weight.shape)
    return Int4(codes, zeros.astype(np.uint8), scales)


def words(nibbles: np.ndarray, order: tuple[int, ...] = IN_ORDER) -> np.ndarray:
    """int32 [R, ceil(C/8)] of nibbles [R, C]; what is missing in the last word is zero."""
    rows, columns = nibbles.shape
    padded = np.pad(nibbles, ((0, 0), (0, -columns % 8))).reshape(rows, -1, 8)
    shifted = padded.astype(np.uint32) << (4 * np.array(order, np.uint32))
    return np.bitwise_or.reduce(shifted, axis=-1).view(np.int32)


def pack_awq(matrix: Int4) -> Parts:
    """AutoAWQ gemm; N is a multiple of 8."""
    return {
        "qweight": words(matrix.codes.T, AWQ_NIBBLE),
        "qzeros": words(matrix.zeros.T, AWQ_NIBBLE),
        "scales": matrix.scales.T.astype(np.float16),
    }


def pack_quark(matrix: Int4, dtype: str, pack_method: str) -> Parts:
    """Quark W4A16: int4 stores two's complement, of the zero points as well."""
    flip = 8 if dtype == "int4" else 0
    order = AWQ_NIBBLE if pack_method == "reorder" else IN_ORDER
    return {
        "weight": words(matrix.codes.T ^ flip, order),
        "weight_zero_point": words(matrix.zeros.T ^ flip, order),
        "weight_scale": np.ascontiguousarray(matrix.scales.T),
    }


def pack_compressed(
    matrix: Int4, zero_points: bool = False, column_groups: np.ndarray | None = None
) -> Parts:
    """compressed-tensors pack-quantized.

    With `column_groups` [K] (the group of every stored column) the columns of `matrix` are taken
    group by group and stored where that puts them.
    """
    codes = matrix.codes
    if column_groups is not None:
        codes = np.empty_like(codes)
        codes[:, np.argsort(column_groups, kind="stable")] = matrix.codes
    parts = {
        "weight_packed": words(codes),
        "weight_scale": matrix.scales,
        "weight_shape": np.array(codes.shape, np.int64),
    }
    if zero_points:
        parts["weight_zero_point"] = np.ascontiguousarray(words(matrix.zeros.T).T)
    if column_groups is not None:
        parts["weight_g_idx"] = column_groups.astype(np.int32)
    return parts


def _fp8(weight: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return np.clip(weight / scales.astype(np.float64), -FP8_MAX, FP8_MAX).astype(E4M3)


def _scale(amax: np.ndarray) -> np.ndarray:
    return np.maximum(amax.astype(np.float64), 1e-12) / FP8_MAX


def pack_fp8(weight: np.ndarray) -> Parts:
    """ModelOpt FP8: one scale for the tensor."""
    scale = _scale(np.abs(weight).max()).astype(np.float32)
    return {
        "weight": _fp8(weight, scale),
        "weight_scale": np.asarray(scale),
        "input_scale": np.asarray(np.float32(0.01)),
    }


def pack_fp8_rows(weight: np.ndarray, dtype: Any = ml_dtypes.bfloat16) -> Parts:
    """compressed-tensors float-quantized: one scale for each row, [N, 1]."""
    scales = _scale(np.abs(weight).max(1, keepdims=True)).astype(dtype)
    return {"weight": _fp8(weight, scales), "weight_scale": scales}


def pack_fp8_blocks(
    weight: np.ndarray, naming: BlockNaming, dtype: Any = ml_dtypes.bfloat16
) -> Parts:
    """One scale for each block of 128 by 128; the blocks at the edges may be smaller."""
    n, k = weight.shape
    padded = np.pad(np.abs(weight), ((0, -n % BLOCK), (0, -k % BLOCK)))
    grid = padded.reshape(padded.shape[0] // BLOCK, BLOCK, -1, BLOCK).max((1, 3))
    scales = _scale(grid).astype(np.float32 if naming == "modelopt" else dtype)
    whole = np.repeat(np.repeat(scales, BLOCK, axis=0), BLOCK, axis=1)[:n, :k]
    if naming == "modelopt":
        # Its exporter drops the axes of a single scale.
        scales = scales.reshape(()) if scales.size == 1 else scales[:, None, :, None]
    name = "weight_scale_inv" if naming == "official" else "weight_scale"
    return {"weight": _fp8(weight, whole), name: scales}


def awq_record(group: int, excluded: list[str]) -> dict[str, Any]:
    return {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "version": "gemm",
        "zero_point": True,
        "modules_to_not_convert": excluded or None,
    }


def quark_record(group: int, dtype: str, pack_method: str, excluded: list[str]) -> dict[str, Any]:
    weight = {"dtype": dtype, "qscheme": "per_group", "group_size": group, "ch_axis": -1}
    return {
        "quant_method": "quark",
        "exclude": excluded,
        "export": {"pack_method": pack_method, "weight_format": "real_quantized"},
        "global_quant_config": {"weight": weight | {"symmetric": dtype == "int4"}},
    }


def compressed_record(
    weights: dict[str, Any], form: str, ignore: list[str], targets: tuple[str, ...] = ("Linear",)
) -> dict[str, Any]:
    """One group; `weights` are its arguments and `form` the name of the format."""
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ignore,
        "config_groups": {"group_0": {"targets": list(targets), "weights": weights}},
    }


def int4_weights(group: int, symmetric: bool) -> dict[str, Any]:
    """Arguments of packed INT4 for `compressed_record`."""
    return {
        "num_bits": 4,
        "type": "int",
        "strategy": "group",
        "group_size": group,
        "symmetric": symmetric,
    }


FP8_ROW_WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}


def official_fp8_record(excluded: list[str]) -> dict[str, Any]:
    return {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": excluded,
    }


def modelopt_record(algorithm: str, excluded: list[str]) -> dict[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": excluded}
