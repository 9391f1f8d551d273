"""Whole models in every weight format, from files to logits, on one rank and on four.

Oracle: the same model built dense from the weights that the tests' own writer (test_formats_writers) decoded. Not covered: GPU
routes; checkpoints of the formats' packages (test_formats_checkpoints).
"""

from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest
from format_models import MODEL, Layout, Model, dense_twin, load, logits, usual, write_model
from format_writers import FORMATS
from model_harness import relative

from onecat_jax.cli.main import main
from onecat_jax.custom_calls.linear import FP8, INT4, NVFP4, Dense
from onecat_jax.errors import CheckpointError, EngineError

# A quarter of the head's rows cuts through words of eight codes, tiles and scale blocks; layers' parts are whole.
UNEVEN = replace(MODEL, vocab_size=104)
TOKENS = np.random.default_rng(5).integers(0, UNEVEN.vocab_size, 44).tolist()
PROMPT = 40
TOLERANCE = 1e-4
GATES = ("in_proj_a", "in_proj_b")
OFTEN = (
    "nvfp4 modelopt",
    "fp8 tensor",
    "fp8 block",
    "int4 zeros",
    "awq 32",
)  # the others are slow tests
SPLIT = [name for name in FORMATS if name != "int4 order"]  # refused, below


def marked(forms):
    """Formats as parameters; one of each kind is checked every time."""
    slow = pytest.mark.slow
    return [form if form in OFTEN else pytest.param(form, marks=slow) for form in forms]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory):
    @cache
    def write(form: str) -> Model:
        return write_model(tmp_path_factory.mktemp("model"), with_head(form), config=UNEVEN)

    return write


def with_head(form: str) -> Layout:
    """One format for everything but the gates."""
    return lambda module: "" if module.endswith(GATES) else form


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Logits of a harness; programs are shared by weights of one structure."""
    steps = {}

    def of(harness) -> np.ndarray:
        leaves = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(harness.params))
        key = jax.tree.structure(harness.params), leaves, harness.options
        return logits(harness, steps.setdefault(key, harness.step), TOKENS, PROMPT)

    return of


def assert_equals_its_twin(model: Model, harness, run) -> None:
    expected = run(dense_twin(model))
    assert relative(run(harness), expected, float(np.ptp(expected))) <= TOLERANCE


@pytest.mark.parametrize("form", FORMATS)
def test_a_model_computes_what_its_decoded_weights_compute(written, run, form: str):
    model = written(form)
    harness = load(model.folder)
    assert_equals_its_twin(model, harness, run)
    kind = FP8 if form.startswith("fp8") else NVFP4 if form.startswith("nvfp4") else INT4
    for segment in harness.params.segments:
        linears = [segment.mlp.gate_up_proj, segment.mlp.down_proj]
        linears += [segment.gdn.in_proj, segment.gdn.out_proj] if segment.gdn else []
        linears += (
            [segment.attention.qkv_proj, segment.attention.o_proj] if segment.attention else []
        )
        assert {type(linear) for linear in linears} == {kind}, "bytes stay packed on the device"
    assert isinstance(harness.params.head, kind)


@pytest.mark.parametrize("form", marked(SPLIT))
def test_four_ranks_compute_it_too(written, run, form: str):
    model = written(form)
    assert_equals_its_twin(model, load(model.folder, ranks=4), run)


@pytest.mark.parametrize(
    "form",
    [
        "fp8 block",
        "int4 zeros",
        *marked(["awq 128", "int4 order", "fp8 channel"]),
    ],
)
def test_plain_jax_computes_it_too(written, run, form: str):
    model = written(form)
    assert_equals_its_twin(model, load(model.folder, backend="plain"), run)


# Parts of K that are no whole groups

CUT_GROUPS = {  # format -> features, halves of which are whole groups and quarters aren't
    "nvfp4 modelopt": 96,
    "nvfp4 compressed": 96,
    "fp8 block": 768,
    "awq 32": 192,
    "awq symmetric": 384,
    "awq 128": 768,
    "quark int4 order": 192,
    "quark uint4 order": 768,
    "int4": 768,
    "int4 zeros": 192,
}


@pytest.mark.parametrize(("form", "features"), CUT_GROUPS.items())
def test_four_ranks_that_would_cut_through_groups_are_refused(tmp_path, capsys, form, features):
    """By what packs weights, and before that with the numbers of ranks that would do."""
    model = write_model(tmp_path, usual(form), config=replace(UNEVEN, intermediate_size=features))
    why = (
        f"leaves {features // 4} of K = {features} input features of layers.0.mlp.down_proj.weight"
    )
    with pytest.raises(EngineError, match=why):
        load(model.folder, ranks=4)
    assert main(["info", str(model.folder), "--tensor-parallel-size", "4"]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.endswith("It can be 1, 2.\n")


@pytest.mark.parametrize("form", ["fp8 tensor", "fp8 row", "fp8 channel"])
def test_scales_that_do_not_depend_on_k_let_it_be_cut_anywhere(tmp_path: Path, run, form: str):
    """104 columns a rank are no whole units of any packed layout."""
    model = write_model(tmp_path, usual(form), config=replace(UNEVEN, intermediate_size=416))
    assert_equals_its_twin(model, load(model.folder, ranks=4), run)


# Orders of columns


def test_an_order_of_columns_cannot_be_split(written):
    with pytest.raises(EngineError) as caught:
        load(written("int4 order").folder, ranks=4)
    assert str(caught.value).startswith("tensor_parallel_size is 4, which leaves 128 of K = 512")
    assert "activation order have groups spread over all of K" in str(caught.value)


def test_an_order_of_columns_that_stay_whole_runs_on_four_ranks(tmp_path: Path, run):
    whole = ("o_proj", "out_proj", "down_proj")

    def layout(module: str) -> str:
        return "int4" if module.endswith(whole) else usual("int4 order")(module)

    record = dict(FORMATS["int4"].record(["lm_head", "re:.*in_proj_[ab]$"]))
    scheme = {"num_bits": 4, "type": "int"}
    record["config_groups"] = {"group_0": {"targets": ["Linear"], "weights": scheme}}
    model = write_model(tmp_path, layout, record=without_zeros(record))
    assert_equals_its_twin(model, load(model.folder, ranks=4), run)


def without_zeros(record):
    """The two formats differ in zero points: one group for each."""
    ordered = {"num_bits": 4, "type": "int", "symmetric": False, "group_size": 64}
    plain = {"num_bits": 4, "type": "int", "symmetric": True, "group_size": 128}
    named = {"targets": ["re:.*(o_proj|out_proj|down_proj)$"], "weights": plain}
    general = {"targets": ["Linear"], "weights": ordered}
    return record | {"config_groups": {"group_0": general, "group_1": named}}


# Mixtures


def mixed_by_layer(module: str) -> str:
    """NVFP4 feed-forwards below, FP8 above; the head FP8 as well."""
    if module == "lm_head":
        return "fp8 channel"
    if module.endswith(("in_proj_a", "in_proj_b")):
        return ""
    lower = module.split(".")[1] in ("0", "1")
    return "nvfp4 compressed" if ".mlp." in module and lower else "fp8 channel"


MIXED_RECORD = {
    "quant_method": "compressed-tensors",
    "format": "mixed-precision",
    "ignore": ["re:.*in_proj_[ab]$"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "format": "float-quantized",
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
        },
        "group_1": {
            "targets": [r"re:.*layers\.[01]\.mlp\.(gate|up|down)_proj$"],
            "format": "nvfp4-pack-quantized",
            "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group"},
        },
    },
}


@pytest.mark.parametrize("ranks", [1, 4])
def test_formats_that_differ_by_layer_become_segments(tmp_path: Path, run, ranks: int):
    model = write_model(tmp_path, mixed_by_layer, record=MIXED_RECORD)
    harness = load(model.folder, ranks)
    kinds = [(len(s.pattern) * s.repeats, type(s.mlp.down_proj)) for s in harness.params.segments]
    assert kinds == [(2, NVFP4), (1, FP8), (1, FP8)]
    assert isinstance(harness.params.head, FP8)
    assert_equals_its_twin(model, harness, run)


def test_groups_that_differ_by_layer_become_segments_and_keep_their_size(tmp_path: Path, run):
    def layout(module: str) -> str:
        first = module.startswith("layers.0.")
        return usual("awq 32" if first else "awq 128")(module)

    record = FORMATS["awq 128"].record(["lm_head", "in_proj_a", "in_proj_b"])
    model = write_model(tmp_path, layout, record=dict(record) | {"group_size": None})
    harness = load(model.folder)
    assert [s.mlp.down_proj.group for s in harness.params.segments] == [32, 128, 128]
    assert_equals_its_twin(model, harness, run)


@pytest.mark.parametrize("ranks", [1, 4])
def test_scales_of_siblings_stay_exact(tmp_path: Path, run, ranks: int):
    """Per tensor beside per row, in one fused site: neither is rounded to the other."""

    def layout(module: str) -> str:
        rows = module.endswith(("k_proj", "up_proj", "in_proj_z"))
        return usual("fp8 row" if rows else "fp8 tensor")(module)

    algorithms = {"fp8 row": "FP8_PER_CHANNEL_PER_TOKEN", "fp8 tensor": "FP8"}
    model = write_model(tmp_path, layout, record={"quant_method": "modelopt"})
    layers = {
        f"model.language_model.{module}": {"quant_algo": algorithms[form]}
        for module, form in model.layout.items()
        if form
    }
    record = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    model = write_model(tmp_path, layout, record=record | {"quantized_layers": layers})
    harness = load(model.folder, ranks)
    assert len(harness.params.segments) == 2
    assert_equals_its_twin(model, harness, run)


# Everything NVFP4, gates included


@pytest.mark.parametrize("form", ["nvfp4 padded", "fp8 channel", "int4 zeros"])
@pytest.mark.parametrize("ranks", [1, 4])
def test_quantised_gates_are_decoded(tmp_path: Path, run, form: str, ranks: int):
    model = write_model(tmp_path, lambda module: "" if module == "lm_head" else form)
    harness = load(model.folder, ranks)
    gates = harness.params.segments[0].gdn.gate_proj
    assert isinstance(gates, Dense)
    decoded = model.decoded["layers.0.linear_attn.in_proj_b.weight"].weight
    first = np.asarray(gates.weight)[0]
    np.testing.assert_array_equal(first[: len(decoded) // ranks], decoded[: len(decoded) // ranks])
    assert_equals_its_twin(model, harness, run)


def test_a_quantised_and_a_dense_sibling_are_refused_by_name(tmp_path: Path):
    def layout(module: str) -> str:
        return "" if module.endswith("up_proj") else usual("fp8 tensor")(module)

    with pytest.raises(CheckpointError) as caught:
        load(write_model(tmp_path, layout).folder)
    assert (
        "gate_proj.weight (model.safetensors, F8_E4M3 [512, 256]) is FP8, model.layers.0.mlp.up_proj.weight "
        "(model.safetensors, BF16 [512, 256]) is dense; tensors that are multiplied together"
    ) in str(caught.value)
