"""The tests' own writer of weight formats writes what the formats' packages write.

Oracle: the packages' tensors, byte for byte, from codes, scales and zero points that `format_decode` takes out of them. So the
checkpoints of test_formats_models and of the refusals are made of the real layouts.
"""

import numpy as np
import pytest
from format_decode import AWQ_NIBBLE, IN_ORDER, nibbles
from format_goldens import Golden, golden_names, load_golden
from format_writers import FORMATS, pack_awq, pack_compressed, pack_quark

INT4 = [name for name in golden_names() if name.startswith(("awq", "quark", "compressed_int4"))]


def written_again(golden: Golden, parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A golden's tensors, taken apart by the tests' decoder and packed by the tests' writer."""
    if "qweight" in parts:
        codes, zeros = (nibbles(parts[n], AWQ_NIBBLE).T for n in ("qweight", "qzeros"))
        return pack_awq(codes, parts["scales"].T, zeros)
    if "weight_packed" in parts:
        zeros = parts.get("weight_zero_point")
        rows = parts["weight_packed"].shape[0]
        unpacked = None if zeros is None else nibbles(zeros.T.copy()).T[:rows]
        groups = parts.get("weight_g_idx")
        codes = nibbles(parts["weight_packed"])
        return pack_compressed(codes, parts["weight_scale"], unpacked, groups)
    interleaved = golden.config["export"]["pack_method"] == "reorder"
    signed = golden.config["global_quant_config"]["weight"]["dtype"] == "int4"
    places, scales = AWQ_NIBBLE if interleaved else IN_ORDER, parts["weight_scale"].T
    taken = (nibbles(parts[n], places).T[: len(scales)] for n in ("weight", "weight_zero_point"))
    codes, zeros = ((c ^ 8 if signed else c) for c in taken)
    return pack_quark(codes, scales, zeros, interleaved, signed)


@pytest.mark.parametrize("name", INT4)
def test_int4_words_are_those_of_the_package(name: str):
    golden = load_golden(name)
    for module in golden.dequantised:
        parts = golden.parts(module)
        again = written_again(golden, parts)
        assert set(again) == set(parts)
        for suffix, array in parts.items():
            assert again[suffix].dtype == array.dtype, suffix
            np.testing.assert_array_equal(again[suffix], array, suffix)


@pytest.mark.parametrize("name", FORMATS)
def test_written_values_are_near_the_matrix(name: str):
    matrix = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    written = FORMATS[name].write(matrix)
    assert written.values.dtype == np.float64
    error = np.linalg.norm(written.values - matrix) / np.linalg.norm(matrix)
    assert error < (0.04 if "fp8" in name else 0.15)


@pytest.mark.parametrize("name", [n for n in FORMATS if not n.startswith("nvfp4")])
def test_names_dtypes_and_ranks_of_tensors_are_those_of_a_package(name: str):
    """The number of zero points and orders aside, some package writes every layout that is written here."""
    found = FORMATS[name].write(np.eye(256, dtype=np.float32)).parts
    mine = {(suffix, array.dtype, array.ndim) for suffix, array in found.items()}
    known = {
        (suffix, array.dtype, array.ndim)
        for golden in map(load_golden, golden_names())
        for module in golden.dequantised
        for suffix, array in golden.parts(module).items()
    }
    floats = {  # dtypes of scales that are legal and that no package wrote here
        ("weight_scale", np.dtype(np.float32), 2),
        ("weight_scale", np.dtype(np.float16), 2),
    }
    assert mine <= known | floats
