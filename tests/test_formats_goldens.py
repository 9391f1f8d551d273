"""Every weight format is read as its own package means it.

Oracle: weights that the formats' public packages wrote and decoded (tests/golden/formats). Checked: the format is found in
names and dtypes, the package's record agrees, decoding is exact, ranks hold the rows and columns they should, and the product
with packed weights is that of the decoded matrix in float64. Not covered: whole models (test_formats_models).
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import write_json, write_tensors
from format_goldens import Golden, golden_names, load_golden

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import LinearRoute, build_linear, exact_matrix, linear
from onecat_jax.loading import Checkpoint
from onecat_jax.loading.formats import Source
from onecat_jax.loading.names import strip_prefix
from onecat_jax.loading.sources import find_sources
from onecat_jax.models.pieces import Cut
from onecat_jax.models.slices import HostTensor
from onecat_jax.models.spec import Section, TensorSpec, TensorSpecs

NAMES = golden_names()
STORAGE = {  # by the beginning of a golden's name
    "awq_g128": "int4 in groups of 128 with zero points",
    "awq_g32": "int4 in groups of 32 with zero points",
    "compressed_fp8_block": "fp8 per block",
    "compressed_fp8_channel": "fp8 per row",
    "compressed_int4_g32": "int4 in groups of 32",
    "compressed_int4_zero_g32": "int4 in groups of 32 with zero points",
    "compressed_int4_zero": "int4 in groups of 128 with zero points",
    "compressed_int4_order_zero_g32": "int4 in groups of 32 with zero points",
    "compressed_int4_order": "int4 in groups of 128",
    "compressed_int4": "int4 in groups of 128",
    "fp8_block": "fp8 per block",
    "modelopt_fp8_block": "fp8 per block",
    "modelopt_fp8_channel": "fp8 per row",
    "modelopt_fp8": "fp8 per tensor",
    "quark_int4_order_g32": "int4 in groups of 32",
    "quark_int4_reorder_g128": "int4 in groups of 128",
    "quark_uint4_order_g128": "int4 in groups of 128",
    "quark_uint4_reorder_g32": "int4 in groups of 32",
    "compressed_nvfp4": "nvfp4",
    "modelopt_nvfp4": "nvfp4",
    "modelopt_w4a16_nvfp4": "nvfp4",
}
EXCEPTIONS = {  # one block has one scale; mixtures differ by module
    ("modelopt_fp8_block", "mlp.gate_proj"): "fp8 per tensor",
    ("compressed_mixed", "mlp.up_proj"): "nvfp4",
    ("compressed_mixed", "linear_attn.out_proj"): "fp8 per row",
    ("modelopt_mixed", "mlp.up_proj"): "nvfp4",
    ("modelopt_mixed", "linear_attn.out_proj"): "fp8 per tensor",
}
UNUSED = ("input_scale", "input_global_scale", "weight_g_idx")  # the last where it says nothing


def specs_of(golden: Golden) -> TensorSpecs:
    """What a model of these linears would need, by canonical name."""
    return {
        f"{strip_prefix(module)}.weight": TensorSpec(
            "linear", ((Section(None, n, n),), (Section(None, k, k),))
        )
        for module, (n, k) in ((m, matrix.shape) for m, matrix in golden.dequantised.items())
    }


def write(folder: Path, golden: Golden, record: Any = None) -> Checkpoint:
    """The golden as a checkpoint folder, with its own records or another one."""
    config = {"quantization_config": golden.config if record is None else record}
    write_json(folder / "config.json", config)
    if golden.hf_quant_config is not None and record is None:
        write_json(folder / "hf_quant_config.json", golden.hf_quant_config)
    write_tensors(folder, golden.tensors)
    return Checkpoint.open(folder)


def expected(golden: Golden) -> dict[str, np.ndarray]:
    """The package's matrices by canonical name."""
    return {
        f"{strip_prefix(module)}.weight": matrix for module, matrix in golden.dequantised.items()
    }


@pytest.fixture(scope="module", params=NAMES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return load_golden(request.param)


@pytest.fixture(scope="module")
def checkpoint(golden: Golden, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write(tmp_path_factory.mktemp("golden"), golden)


@pytest.fixture(scope="module")
def sources(golden: Golden, checkpoint: Checkpoint) -> dict[str, Source]:
    return find_sources(checkpoint, specs_of(golden))


def assert_decoded(golden: Golden, name: str, tensor: HostTensor, matrix: np.ndarray):
    """Exactly, but for a divisor: there the multiplier is a float32 of its own."""
    found = exact_matrix(tensor).astype(np.float32)
    if golden.name in ("compressed_nvfp4", "compressed_mixed"):
        np.testing.assert_allclose(found, matrix, rtol=2**-22, err_msg=name)
    else:
        np.testing.assert_array_equal(found, matrix, name)


def test_the_format_is_found_and_the_record_agrees(golden: Golden, sources: dict[str, Source]):
    for name, source in sources.items():
        module = name.removeprefix("layers.0.").removesuffix(".weight")
        wanted = EXCEPTIONS.get((golden.name, module)) or STORAGE[golden.name]
        assert str(source.storage) == wanted
        assert set(source.parts) >= {
            stored
            for stored in golden.tensors
            if strip_prefix(stored).startswith(f"layers.0.{module}.")
            and not stored.endswith(UNUSED)
        }


def test_names_and_dtypes_suffice(golden: Golden, tmp_path: Path):
    """Without a record nothing changes; Quark's nibbles are what its record alone tells."""
    write(tmp_path, golden)
    write_json(tmp_path / "config.json", {})
    (tmp_path / "hf_quant_config.json").unlink(missing_ok=True)
    bare = Checkpoint.open(tmp_path)
    if golden.config["quant_method"] == "quark":
        with pytest.raises(Exception, match="is Quark INT4, whose order of nibbles and sign only"):
            find_sources(bare, specs_of(golden))
        return
    for name, source in find_sources(bare, specs_of(golden)).items():
        assert_decoded(golden, name, source.read(bare.array), expected(golden)[name])


def test_decoding_is_what_the_package_decodes(
    golden: Golden, checkpoint: Checkpoint, sources: dict[str, Source]
):
    for name, source in sources.items():
        assert_decoded(golden, name, source.read(checkpoint.array), expected(golden)[name])


ROWS = [Cut(0, ((0, 8),)), Cut(0, ((8, 24),)), Cut(0, ((5, 18),)), Cut(0, ((0, 7), (13, 32)))]


@pytest.mark.parametrize("cut", ROWS, ids=str)
def test_rows_of_a_rank_are_those_rows(golden, checkpoint, sources, cut: Cut):
    """Whole words, cut words, several spans; the last row too."""
    for name, source in sources.items():
        matrix = expected(golden)[name]
        if len(matrix) < 32:
            continue
        ends = (*cut.spans[:-1], (cut.spans[-1][0], len(matrix)))
        for spans in (cut.spans, ends):
            found = source.read_part(checkpoint.array, Cut(0, spans))
            rows = np.concatenate([matrix[a:b] for a, b in spans])
            assert_decoded(golden, name, found, rows)


def test_columns_of_a_rank_are_those_columns_on_borders_of_groups(golden, checkpoint, sources):
    cuts = 0
    for name, source in sources.items():
        matrix, grain = expected(golden)[name], source.grain
        step = 1 if grain is None else grain.k
        if step == 0 or matrix.shape[1] < 2 * step:
            continue
        middle = matrix.shape[1] // 2 // step * step
        for a, b in ((0, middle), (middle, matrix.shape[1])):
            found = source.read_part(checkpoint.array, Cut(1, ((a, b),)))
            assert_decoded(golden, name, found, matrix[:, a:b])
            cuts += 1
    assert cuts or golden.name.startswith("compressed_int4_order")


@pytest.mark.parametrize("backend", ["auto", "plain"])
def test_products_are_those_of_the_decoded_matrix(golden, checkpoint, sources, backend: str):
    policy = Policy(backend=backend)
    for name, source in sources.items():
        matrix = expected(golden)[name].astype(np.float64)
        weight = build_linear(
            [[source.read(checkpoint.array)]], route=LinearRoute(policy), dtype=np.float32
        )
        for rows in (1, 5):
            x = np.random.default_rng(rows).standard_normal((rows, matrix.shape[1]), np.float32)
            exact = x.astype(np.float64) @ matrix.T
            found = np.asarray(linear(x, weight, policy=policy), np.float64)
            assert np.abs(found - exact).max() <= 1e-5 * np.abs(exact).max(), name


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_products_in_half_precision_are_within_a_thousandth(golden, checkpoint, sources, dtype):
    """Of the largest, with rounded inputs: sums are in float32, the result is not rounded."""
    for name, source in sources.items():
        matrix = expected(golden)[name].astype(np.float64)
        weight = build_linear([[source.read(checkpoint.array)]], route=LinearRoute(), dtype=dtype)
        x = np.random.default_rng(3).standard_normal((3, matrix.shape[1]), np.float32)
        x = x.astype(dtype)
        exact = x.astype(np.float64) @ matrix.T
        found = np.asarray(linear(x, weight, out_dtype=np.float32), np.float64)
        assert np.abs(found - exact).max() <= 1e-3 * np.abs(exact).max(), name


OTHERS: dict[str, Any] = {
    "awq": {"quant_method": "awq", "bits": 4, "version": "gemm", "group_size": 64},
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "modelopt fp8": {"quant_method": "modelopt", "quant_algo": "FP8"},
    "modelopt nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "quark": {
        "quant_method": "quark",
        "global_quant_config": {"weight": {"dtype": "int8", "qscheme": "per_tensor"}},
    },
    "int8": {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int"}}},
    },
    "everything excluded": {
        "quant_method": "compressed-tensors",
        "ignore": ["re:.*"],
        "config_groups": {},
    },
}


@pytest.mark.parametrize("other", OTHERS)
def test_the_record_of_another_format_is_refused(golden: Golden, tmp_path: Path, other: str):
    """Except where it says the same: a scale per tensor, one of the two halves of a mixture."""
    record = json.loads(json.dumps(OTHERS[other]))
    storage = {
        EXCEPTIONS.get((golden.name, strip_prefix(m).removeprefix("layers.0.")))
        or STORAGE[golden.name]
        for m in golden.dequantised
    }
    said = {"fp8": "fp8 per block", "modelopt fp8": "fp8 per tensor", "modelopt nvfp4": "nvfp4"}
    if storage <= {said.get(other)} or (other == "fp8" and golden.name == "modelopt_fp8_block"):
        find_sources(write(tmp_path, golden, record), specs_of(golden))
        return
    with pytest.raises(Exception, match=r"is stored as|whose order of nibbles") as caught:
        find_sources(write(tmp_path, golden, record), specs_of(golden))
    assert "config.json" in str(caught.value)


def test_reading_is_refused_before_the_packing_is_known(tmp_path: Path):
    golden = load_golden("quark_int4_order_g32")
    checkpoint = write(tmp_path, golden)
    source = next(iter(find_sources(checkpoint, specs_of(golden)).values()))
    with pytest.raises(ValueError, match="can't be read before its packing is known"):
        replace(source, packing=None).read(checkpoint.array)
