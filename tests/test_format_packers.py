"""The tests' own packers write what the formats' packages write.

Oracle: the goldens. INT4 codes, zero points and scales taken out of a golden are packed again to the
same bits; FP8, whose packing is its rounding, gives the same names, dtypes and shapes and values
within half a step. Records are parts of those that the packages write.
"""

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from format_decode import AWQ_NIBBLE, IN_ORDER, decode, nibbles
from format_goldens import Golden, load_golden
from format_packers import (
    FP8_ROW_WEIGHTS,
    Int4,
    Parts,
    awq_record,
    compressed_record,
    int4_weights,
    modelopt_record,
    official_fp8_record,
    pack_awq,
    pack_compressed,
    pack_fp8,
    pack_fp8_blocks,
    pack_fp8_rows,
    pack_quark,
    quark_record,
    round_int4,
)

QUARK = [(d, m, g) for d, m, g in (("int4", "reorder", 128), ("int4", "order", 32))]
QUARK += [("uint4", "reorder", 32), ("uint4", "order", 128)]
COMPRESSED = [
    ("compressed_int4", 128, True),
    ("compressed_int4_g32", 32, True),
    ("compressed_int4_zero", 128, False),
    ("compressed_int4_zero_g32", 32, False),
    ("compressed_int4_order", 128, True),
    ("compressed_int4_order_zero_g32", 32, False),
]


def assert_same(found: Parts, expected: Mapping[str, np.ndarray]) -> None:
    """Names, dtypes, shapes and bits."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name


def assert_part_of(found: Any, whole: Any) -> None:
    """Every entry of `found` is in `whole` with the same value."""
    if isinstance(found, dict):
        for key, value in found.items():
            assert key in whole, key
            assert_part_of(value, whole[key])
    else:
        assert found == whole


@pytest.mark.parametrize("group", [128, 32])
def test_awq(group: int):
    golden = load_golden(f"awq_g{group}")
    for module in golden.dequantised:
        parts = golden.parts(module)
        codes, zeros = (nibbles(parts[name], AWQ_NIBBLE).T for name in ("qweight", "qzeros"))
        assert_same(pack_awq(Int4(codes, zeros, parts["scales"].T)), parts)
    assert_part_of(awq_record(group, []), golden.config)


@pytest.mark.parametrize(("dtype", "method", "group"), QUARK)
def test_quark(dtype: str, method: str, group: int):
    golden = load_golden(f"quark_{dtype}_{method}_g{group}")
    order = AWQ_NIBBLE if method == "reorder" else IN_ORDER
    for module in golden.dequantised:
        parts = golden.parts(module)
        scales, flip = parts["weight_scale"].T, 8 if dtype == "int4" else 0
        codes, zeros = (
            nibbles(parts[name], order).T[: len(scales)] ^ flip
            for name in ("weight", "weight_zero_point")
        )
        packed = pack_quark(Int4(codes, zeros, scales), dtype, method)
        assert_same(packed, parts)
    assert_part_of(quark_record(group, dtype, method, []), golden.config)


@pytest.mark.parametrize(("name", "group", "symmetric"), COMPRESSED)
def test_compressed(name: str, group: int, symmetric: bool):
    golden = load_golden(name)
    for module in golden.dequantised:
        parts = golden.parts(module)
        rows, columns = parts["weight_shape"]
        codes = nibbles(parts["weight_packed"])[:, :columns]
        scales, zeros = parts["weight_scale"], np.full(parts["weight_scale"].shape, 8, np.uint8)
        if not symmetric:
            zeros = nibbles(parts["weight_zero_point"].T).T[:rows]
        column_groups = parts.get("weight_g_idx")
        if column_groups is not None:
            codes = codes[:, np.argsort(column_groups, kind="stable")]
        assert_same(
            pack_compressed(Int4(codes, zeros, scales), not symmetric, column_groups), parts
        )
    record = compressed_record(int4_weights(group, symmetric), "pack-quantized", [])
    assert_part_of(record, golden.config)


def fp8_cases() -> list[tuple[str, Callable[[np.ndarray], Parts], dict[str, Any]]]:
    row_record = compressed_record(FP8_ROW_WEIGHTS, "float-quantized", [])
    return [
        ("modelopt_fp8", pack_fp8, modelopt_record("FP8", [])),
        ("compressed_fp8_channel", pack_fp8_rows, row_record),
        (
            "modelopt_fp8_block",
            lambda w: pack_fp8_blocks(w, "modelopt"),
            modelopt_record("fp8_pb_wo", []),
        ),
        ("compressed_fp8_block", lambda w: pack_fp8_blocks(w, "compressed-tensors"), {}),
        ("fp8_block", lambda w: pack_fp8_blocks(w, "official"), official_fp8_record([])),
    ]


@pytest.mark.parametrize(("name", "pack", "record"), fp8_cases(), ids=[c[0] for c in fp8_cases()])
def test_fp8(name: str, pack: Callable[[np.ndarray], Parts], record: dict[str, Any]):
    golden: Golden = load_golden(name)
    for module, weight in golden.dequantised.items():
        found, expected = pack(weight), golden.parts(module)
        assert found.keys() == expected.keys()
        for key, array in expected.items():
            # The official files of both scale dtypes are in one golden.
            widened = key == "weight_scale_inv" and array.dtype == np.float32
            assert found[key].dtype == (ml_dtypes.bfloat16 if widened else array.dtype), key
            assert found[key].shape == array.shape, key
        values = decode(found, golden.config)
        smallest = np.abs(weight).max() * 2.0**-17
        assert (np.abs(values - weight) <= np.abs(weight) * 2.0**-4 + smallest).all(), module
    assert_part_of(record, golden.config)


@pytest.mark.parametrize("zero_points", [False, True])
def test_rounding_is_within_half_a_step(zero_points: bool):
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((24, 128)) + rng.choice([0.0, 1.5], (24, 1))
    matrix = round_int4(weight, 32, zero_points, np.float16)
    packed = pack_compressed(matrix, zero_points)
    error = np.abs(decode(packed, {}) - weight)
    step = np.repeat(matrix.scales.astype(np.float64), 32, axis=1)
    # With a rounded zero point the ends of a group may be half a code further out of reach.
    assert (error <= step * (1.02 if zero_points else 0.52)).all()


def test_a_drawn_order_changes_places_and_nothing_else():
    rng = np.random.default_rng(2)
    matrix = round_int4(rng.standard_normal((16, 96)), 32, True, np.float16)
    column_groups = rng.permutation(np.arange(96) // 32)
    plain = decode(pack_compressed(matrix, True), {})
    scattered = decode(pack_compressed(matrix, True, column_groups), {})
    np.testing.assert_array_equal(scattered[:, np.argsort(column_groups, kind="stable")], plain)
