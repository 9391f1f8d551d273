"""Good checkpoints load. Oracle: the values that the writer of `checkpoints.py` put in.

NVFP4 is compared as codes, bits of scales and multipliers, and once decoded against the values of
the writer's own decoder.
"""

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from checkpoints import (
    SMALL,
    TIED,
    Style,
    config_json,
    quantise,
    random_tensors,
    stored_tensors,
    tensor_specs,
    write_checkpoint,
    write_json,
    write_tensors,
)

from onecat_jax.custom_calls.linear.weights import DenseTensor, NVFP4Tensor
from onecat_jax.loading import Checkpoint, load_tensors
from onecat_jax.loading.formats.nvfp4 import multiplier_of_divisor
from onecat_jax.loading.hub import embedded
from onecat_jax.loading.names import PREFIXES, canonical
from onecat_jax.models.qwen3_5.config import ModelConfig
from onecat_jax.models.registry import resolve

NAMINGS = ("dense", "modelopt", "compressed-tensors")


def load(folder: Path) -> dict[str, object]:
    checkpoint = Checkpoint.open(folder)
    config = resolve(checkpoint.config).read_config(checkpoint.config)
    return load_tensors(checkpoint, tensor_specs(config))


def assert_loaded(loaded: dict[str, object], config: ModelConfig, style: Style, seed: int = 0):
    """Every tensor is what the writer stored."""
    expected = random_tensors(config, seed)
    if not style.mtp:
        expected = {n: v for n, v in expected.items() if not n.startswith("mtp.")}
    assert set(loaded) == set(expected)
    for name, values in expected.items():
        found = loaded[name]
        if isinstance(found, NVFP4Tensor):
            matrix = quantise(values)
            np.testing.assert_array_equal(found.codes, matrix.codes, name)
            np.testing.assert_array_equal(found.scales, matrix.scales.view(np.uint8), name)
            assert found.global_scale.tobytes() == matrix.multiplier.tobytes(), name
        else:
            array = found.weight if isinstance(found, DenseTensor) else found
            assert array.dtype == style.dtype
            np.testing.assert_array_equal(array.astype(np.float32), values, name)


@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("config", [SMALL, TIED], ids=["untied", "tied"])
def test_what_was_written_is_read(tmp_path: Path, naming: str, shards: int, config: ModelConfig):
    style = Style(naming=naming, shards=shards)
    assert_loaded(load(write_checkpoint(tmp_path, config, style)), config, style)


@pytest.mark.parametrize("prefix", ["", *PREFIXES])
@pytest.mark.parametrize("head_prefix", ["", PREFIXES[0], PREFIXES[2]])
@pytest.mark.parametrize("naming", ["dense", "modelopt"])
def test_every_prefix_means_the_same(tmp_path: Path, prefix: str, head_prefix: str, naming: str):
    style = Style(naming=naming, prefix=prefix, head_prefix=head_prefix, nested=True)
    assert_loaded(load(write_checkpoint(tmp_path, SMALL, style)), SMALL, style)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32])
def test_dense_dtypes_are_kept(tmp_path: Path, dtype: type):
    style = Style(dtype=dtype)
    assert_loaded(load(write_checkpoint(tmp_path, SMALL, style)), SMALL, style)


@pytest.mark.parametrize("naming", NAMINGS)
def test_the_mtp_head_is_optional_as_a_whole(tmp_path: Path, naming: str):
    style = Style(naming=naming, mtp=False)
    assert_loaded(load(write_checkpoint(tmp_path, SMALL, style)), SMALL, style)


def test_an_mtp_head_without_a_place_is_left_alone(tmp_path: Path):
    without = replace(SMALL, mtp_num_hidden_layers=0)
    write_checkpoint(tmp_path, SMALL)
    write_json(tmp_path / "config.json", config_json(without))
    assert not any(name.startswith("mtp.") for name in load(tmp_path))


def test_a_stored_head_beside_tied_embeddings_is_not_used(tmp_path: Path):
    write_checkpoint(tmp_path, SMALL)
    write_json(tmp_path / "config.json", config_json(TIED))
    assert "lm_head.weight" not in load(tmp_path)


def test_quantised_gate_projections_and_head_load(tmp_path: Path):
    style = Style(naming="compressed-tensors", quantised=lambda module: module != "mtp.fc")
    assert_loaded(load(write_checkpoint(tmp_path, SMALL, style)), SMALL, style)


def test_formats_may_differ_between_layers(tmp_path: Path):
    style = Style(naming="modelopt", quantised=lambda m: m.startswith("layers.1.mlp"))
    loaded = load(write_checkpoint(tmp_path, SMALL, style))
    assert isinstance(loaded["layers.0.mlp.up_proj.weight"], DenseTensor)
    assert isinstance(loaded["layers.1.mlp.up_proj.weight"], NVFP4Tensor)


def test_vision_tensors_buffers_and_cache_scales_are_skipped(tmp_path: Path):
    write_checkpoint(tmp_path, SMALL)
    extra = {
        "model.visual.blocks.0.attn.qkv.weight": np.ones((3, 3), np.float32),
        "visual.merger.norm.weight": np.ones(3, np.float32),
        "model.layers.1.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32),
        "model.layers.1.self_attn.k_proj.k_scale": np.ones((), np.float32),
        "model.layers.1.self_attn.v_scale": np.ones((), np.float32),
    }
    write_tensors(tmp_path, stored_tensors(SMALL) | extra)
    assert_loaded(load(tmp_path), SMALL, Style())


def test_the_index_decides_between_files_that_hold_the_same_name(tmp_path: Path):
    """The wrong copy lies in every other file of the folder, under each name of the right one."""
    style = Style(shards=2)
    write_checkpoint(tmp_path, SMALL, style, seed=3)
    wrong = Style(shards=1)
    other = write_checkpoint(tmp_path / "other", SMALL, wrong, seed=4)
    (other / "model.safetensors").rename(tmp_path / "aaa.safetensors")
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "aaa.safetensors").read_bytes())
    assert_loaded(load(tmp_path), SMALL, style, seed=3)


def test_without_an_index_all_files_of_the_folder_count(tmp_path: Path):
    write_checkpoint(tmp_path, SMALL, Style(shards=2))
    (tmp_path / "model.safetensors.index.json").unlink()
    assert_loaded(load(tmp_path), SMALL, Style())


def test_a_record_in_hf_quant_config_counts_when_config_has_none(tmp_path: Path):
    style = Style(naming="modelopt")
    write_checkpoint(tmp_path, SMALL, style)
    config = config_json(SMALL, style)
    record = config.pop("quantization_config")
    record.pop("quant_method")
    write_json(tmp_path / "config.json", config)
    write_json(tmp_path / "hf_quant_config.json", {"quantization": record})
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.quantization is not None
    assert checkpoint.quantization["quant_method"] == "modelopt"
    assert checkpoint.quantization_file == "hf_quant_config.json"
    assert_loaded(load(tmp_path), SMALL, style)


def test_the_layer_list_of_a_mixed_record_may_lie_in_hf_quant_config(tmp_path: Path):
    style = Style(naming="modelopt")
    write_checkpoint(tmp_path, SMALL, style)
    mixed = dict(AGREEING["mixed precision"])
    listed = {"quantization": {"quantized_layers": mixed.pop("quantized_layers")}}
    write_json(tmp_path / "config.json", config_json(SMALL) | {"quantization_config": mixed})
    write_json(tmp_path / "hf_quant_config.json", listed)
    assert_loaded(load(tmp_path), SMALL, style)


def test_names_decide_where_no_record_is(tmp_path: Path):
    style = Style(naming="compressed-tensors")
    write_checkpoint(tmp_path, SMALL, style)
    write_json(tmp_path / "config.json", config_json(SMALL))
    assert_loaded(load(tmp_path), SMALL, style)


GATES_AND_HEAD = ("in_proj_a.weight", "in_proj_b.weight", "lm_head.weight")
QUANTISED_MODULES = [
    name.removesuffix(".weight")
    for name, spec in tensor_specs(SMALL).items()
    if spec.kind == "linear" and not name.endswith((*GATES_AND_HEAD, "mtp.fc.weight"))
]
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
AGREEING = {
    "globs": MODELOPT | {"exclude_modules": ["*in_proj_[ab]", "lm_head"]},
    "prefixed globs": {
        "quant_algo": "W4A16_NVFP4",
        "ignore": ["model.language_model.layers.0*in_proj_[ab]", "language_model.lm_head"],
    },
    "leaf names": MODELOPT | {"ignore": ["in_proj_a", "linear_attn.in_proj_b", "lm_head"]},
    "mixed precision": MODELOPT
    | {
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {
            f"model.language_model.{module}": {"quant_algo": "NVFP4", "group_size": 16}
            for module in QUANTISED_MODULES
        },
    },
    "expressions": {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": [r"re:.*(mlp|self_attn|linear_attn)\.(?!in_proj_[ab])\w+$"],
                "weights": {"num_bits": 4, "type": "float", "group_size": 16},
            }
        },
    },
}


@pytest.mark.parametrize("kind", AGREEING)
def test_a_record_that_agrees_is_accepted(tmp_path: Path, kind: str):
    record = AGREEING[kind]
    naming = "compressed-tensors" if "config_groups" in record else "modelopt"
    style = Style(naming=naming)
    write_checkpoint(tmp_path, SMALL, style)
    write_json(tmp_path / "config.json", config_json(SMALL) | {"quantization_config": record})
    assert_loaded(load(tmp_path), SMALL, style)


def test_both_namings_of_the_embedded_model_decode_to_the_same_bits(tmp_path: Path):
    """A copy under compressed-tensors names and float32 divisors gives the multipliers back."""
    folder = embedded("target")
    original = Checkpoint.open(folder)
    stored = {name: original.array(name) for name in original.tensors}
    renamed: dict[str, np.ndarray] = {}
    for name, values in stored.items():
        module = name.removesuffix(".weight")
        if name.endswith("weight_scale_2"):
            divisor = np.float32(1) / np.float32(values)
            renamed[name.replace("weight_scale_2", "weight_global_scale")] = divisor.reshape(1)
        elif f"{module}.weight_scale" in stored:
            renamed[f"{module}.weight_packed"] = values
        else:
            renamed[name] = values
    write_tensors(tmp_path, renamed)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    one, other = load(folder), load(tmp_path)
    assert sum(isinstance(t, NVFP4Tensor) for t in one.values()) == 57
    for name, tensor in one.items():
        if isinstance(tensor, NVFP4Tensor):
            assert tensor.global_scale.tobytes() == other[name].global_scale.tobytes(), name
            assert tensor.scales.tobytes() == other[name].scales.tobytes(), name
            assert tensor.codes.tobytes() == other[name].codes.tobytes(), name


def test_every_bf16_amax_survives_the_divisor():
    """Normal BF16 values up to 2**20: multiplier -> float32 divisor -> the same multiplier."""
    bits = np.arange(0x2000, 0x4980, dtype=np.uint16)
    amax = bits.view(ml_dtypes.bfloat16).astype(np.float64)
    multipliers = (amax / 2688).astype(np.float32)
    divisors = np.float32(1) / multipliers
    found = np.array([multiplier_of_divisor(d) for d in divisors[::7]])
    np.testing.assert_array_equal(found, multipliers[::7])


def test_any_divisor_gives_its_inverse_within_one_ulp():
    rng = np.random.default_rng(0)
    divisors = np.exp(rng.uniform(-20, 20, 2000)).astype(np.float32)
    for divisor in divisors:
        exact = 1 / np.float64(divisor)
        found = multiplier_of_divisor(divisor)
        assert abs(np.float64(found) - exact) <= np.spacing(np.float32(exact))
        assert np.float32(1 / np.float64(found)) == divisor or found == np.float32(exact)


def test_quantised_values_are_close_to_the_weights():
    """The writer's quantiser is sound: what the other tests compare with are real weights."""
    weight = random_tensors(SMALL)["layers.0.mlp.up_proj.weight"]
    values = quantise(weight).values()
    assert np.linalg.norm(values - weight) < 0.15 * np.linalg.norm(weight)


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("model.language_model.layers.0.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"),
        ("language_model.model.norm.weight", "norm.weight"),
        ("model.embed_tokens.weight", "embed_tokens.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("mtp.fc.weight", "mtp.fc.weight"),
        ("model.mtp.fc.weight", "mtp.fc.weight"),
        ("model.visual.patch_embed.weight", None),
        ("model.model.norm.weight", "model.norm.weight"),
    ],
)
def test_canonical_names(stored: str, name: str | None):
    assert canonical(stored) == name
