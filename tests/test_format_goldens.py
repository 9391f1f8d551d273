"""The goldens of the weight formats agree with the description of the formats.

Oracle: the public package of each format, which wrote the tensors and decoded them. Not covered
here: the engine's loaders, which have tests of their own on the same files.
"""

import json

import numpy as np
import pytest
from format_decode import decode
from format_goldens import GOLDEN, golden_names, load_golden, load_versions

NAMES = golden_names()


@pytest.mark.parametrize("name", NAMES)
def test_the_description_decodes_what_the_package_decodes(name: str):
    """Exactly: both work in float64 and round once."""
    golden = load_golden(name)
    for module, expected in golden.dequantised.items():
        found = decode(golden.parts(module), golden.config).astype(np.float32)
        np.testing.assert_array_equal(found, expected, module)


@pytest.mark.parametrize("name", NAMES)
def test_the_weights_are_rich_enough_to_tell_layouts_apart(name: str):
    for module, matrix in load_golden(name).dequantised.items():
        assert np.isfinite(matrix).all(), module
        assert len(np.unique(matrix)) > 100, module
        for axis in (0, 1):
            assert np.unique(matrix, axis=axis).shape == matrix.shape, module


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_belongs_to_a_decoded_module(name: str):
    golden = load_golden(name)
    assert {key.rpartition(".")[0] for key in golden.tensors} == set(golden.dequantised)


def test_versions_name_every_format():
    assert sorted(load_versions()["formats"]) == NAMES
    assert all(entry["packages"] for entry in load_versions()["formats"].values())
    assert sorted(p.stem for p in GOLDEN.glob("*.json")) == sorted([*NAMES, "versions"])


def test_records_are_those_of_the_packages():
    methods = {name: load_golden(name).config["quant_method"] for name in NAMES}
    prefixes = {"awq": "awq", "quark": "quark", "modelopt": "modelopt", "fp8": "fp8"}
    prefixes["compressed"] = "compressed-tensors"
    assert methods == {name: prefixes[name.split("_")[0]] for name in NAMES}
    assert all(json.dumps(load_golden(name).config) for name in NAMES)
