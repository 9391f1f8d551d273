"""What a draft's config.json says, every refusal by name, and which target a draft accepts. No oracle but the written rules."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from dflash_cases import DFLASH1, DFLASH2, TARGET_JSON, TINY, config_json

from onecat_jax.errors import ModelConfigError
from onecat_jax.models.dflash import DFlashConfig, tensor_specs
from onecat_jax.models.dflash.reader import default_taps
from onecat_jax.models.qwen3_5 import ModelConfig

_SLIDING, _FULL = "sliding_attention", "full_attention"


def tiny() -> DFlashConfig:
    return DFlashConfig.from_hf(json.loads((TINY / "dflash2" / "config.json").read_text()))


def published() -> dict:
    path = Path(__file__).parents[1] / "bench" / "published" / "qwen3.8-27b-dflash2.json"
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_released_draft_has_its_published_tensors():
    config = DFlashConfig.from_hf(published())
    specs = {n: s for n, s in tensor_specs(config).items() if s.required}
    assert specs["fc.weight"].shape == (5120, 25600)
    assert specs["layers.4.self_attn.q_proj.weight"].shape == (4096, 5120)
    assert specs["layers.0.attention_conv.base_kernel"].shape == (2, 2, 5120)
    assert specs["layers.0.mlp_conv.kernel_projection.weight"].shape == (1280, 5120)
    assert specs["candidate_selector.predecessor_codebook"].shape == (248320, 256)
    assert specs["candidate_selector.hidden_projection.weight"].shape == (256, 5120)
    size = 0
    for spec in specs.values():
        count = 1
        for dim in spec.shape:
            count *= dim
        size += 2 * count
    assert round(size / 1e9, 3) == 3.849, "published size in bfloat16"
    assert config.windows == (2048,) * 5
    assert config.causal == (False,) * 5
    assert config.rope_theta == 1e7
    assert config.rotary_dim == 128


def test_the_embedded_draft_fits_the_embedded_target():
    config = tiny()
    config.check_target(ModelConfig.from_hf(TARGET_JSON))
    assert (config.block_size, config.mask_token_id, config.selector_top_k) == (8, 8191, 16)
    assert config.target_layer_ids == (1, 3, 5, 6)
    assert config.window == 512


@pytest.mark.parametrize("name", ["block_size", "mask_token_id", "target_layer_ids"])
def test_fields_may_lie_at_top_level(name):
    config = config_json({k: v for k, v in DFLASH2.items() if k != name})
    assert DFlashConfig.from_hf(config | {name: DFLASH2[name]}) == DFlashConfig.from_hf(
        config_json()
    )
    other = [9] if name == "target_layer_ids" else 9
    with pytest.raises(ModelConfigError, match=f"{name} .* at top level and .* must be equal"):
        DFlashConfig.from_hf(config_json() | {name: other})


def test_taps_by_the_default_rule():
    assert default_taps(64, 5) == (1, 16, 31, 46, 61)
    assert default_taps(36, 5) == (1, 9, 17, 25, 33)
    assert default_taps(36, 1) == (18,)
    bare = {k: v for k, v in DFLASH1.items() if k != "target_layer_ids"}
    assert DFlashConfig.from_hf(config_json(bare, num_target_layers=36)).target_layer_ids == (1, 33)
    with pytest.raises(ModelConfigError, match="num_target_layers is missing"):
        DFlashConfig.from_hf(config_json(bare, num_target_layers=None))


@pytest.mark.parametrize(
    ("changes", "dflash", "windows", "causal"),
    [
        ({}, {}, (40, 40), (False, False)),
        ({"is_causal": True}, {"causal": False}, (40, 40), (True, True)),
        ({"is_causal": None}, {"causal": True}, (40, 40), (True, True)),
        ({"is_causal": None, "layer_types": [_SLIDING, _FULL]}, {}, (40, None), (True, False)),
        ({"is_causal": None, "layer_types": None}, {}, (None, None), (False, False)),
        ({"is_causal": None, "layer_types": None}, {"use_swa": True}, (40, 40), (False, False)),
        (
            {"layer_types": [_FULL] * 2},
            {"use_swa": True, "swa_window_size": 9},
            (9, 9),
            (False,) * 2,
        ),
        ({"layer_types": [_SLIDING, _FULL]}, {"use_swa": True}, (40, None), (False, False)),
    ],
)
def test_windows_and_causality(changes, dflash, windows, causal):
    config = DFlashConfig.from_hf(config_json(DFLASH2 | dflash, **changes))
    assert config.windows == windows
    assert config.causal == causal
    assert config.window == (None if None in windows else max(windows))


@pytest.mark.parametrize(
    ("changes", "dflash", "message"),
    [
        ({}, {"markov_rank": 64}, "dflash_config has markov_rank"),
        (
            {},
            {"attention_sink_bias": True},
            "attention_sink_bias is True; attention sinks: not impl",
        ),
        ({"add_swa_attention_sink_bias": True}, {}, "add_swa_attention_sink_bias is True"),
        ({}, {"use_aux_hidden_state": False}, "use_aux_hidden_state is False"),
        ({"mlp_bias": True}, {}, "mlp_bias is True"),
        ({"logit_scale": 0.5}, {}, "logit_scale is 0.5"),
        ({"rope_scaling": {"rope_type": "yarn"}}, {}, "rope_scaling is"),
        ({"rope_parameters": {"rope_type": "yarn"}}, {}, "rope_type is 'yarn'; implemented"),
        ({"rope_parameters": 3}, {}, "rope_parameters is 3; an object"),
        ({"rope_theta": -1}, {}, "rope_theta is -1; a positive number"),
        ({"partial_rotary_factor": 0.01}, {}, "it gives 0 rotary dims"),
        ({"hidden_act": "gelu"}, {}, "hidden_act is 'gelu'"),
        ({"architectures": ["DSparkDraftModel"]}, {}, "architectures is .*DSparkDraftModel"),
        ({"target_hidden_size": 128}, {}, "target_hidden_size is 128; hidden_size is 64"),
        ({"num_attention_heads": 3}, {}, "num_attention_heads 3 is not a multiple of"),
        ({"layer_types": ["linear_attention"] * 2}, {}, "layer_types is"),
        ({"layer_types": [_FULL] * 3}, {}, "layer_types is '3 layers'; num_hidden_layers is 2"),
        ({"sliding_window": None}, {}, "sliding_window is missing"),
        ({"is_causal": "no"}, {}, "is_causal or dflash_config.causal is 'no'"),
        ({"is_neox_style": 1}, {}, "is_neox_style is 1; true or false"),
        ({"hidden_size": None}, {}, "hidden_size is missing"),
        ({"draft_vocab_size": 999}, {}, "draft_vocab_size is 999; a whole number from 1 to 256"),
        ({}, {"block_size": "8"}, "block_size is '8'; a whole number"),
        ({}, {"target_layer_ids": [1, 1]}, "target_layer_ids is .*different layer numbers"),
        ({}, {"target_layer_ids": []}, "target_layer_ids is"),
        ({}, {"selector_rank": 0}, "selector_rank 0, selector_top_k 16; DFlash2 needs all four"),
        ({}, {"conv_group_size": 24}, "conv_group_size is 24 .* must divide hidden_size 64"),
        ({}, {"conv_kernel_size": 9}, "conv_kernel_size 9; .* up to block_size 8"),
        ({"final_logit_softcapping": -3}, {}, "final_logit_softcapping is -3"),
        ({"output_multiplier": 0}, {}, "output_multiplier is 0; a positive number"),
        ({"draft_vocab_size": 8}, {}, "selector_top_k is 16, more than its 8 ids"),
    ],
)
def test_what_isn_t_implemented_or_contradicts_itself_is_refused_by_name(changes, dflash, message):
    with pytest.raises(ModelConfigError, match=message):
        DFlashConfig.from_hf(config_json(DFLASH2 | dflash, **changes))


def test_a_dflash_config_that_is_no_object_is_refused():
    with pytest.raises(ModelConfigError, match="dflash_config is 7; an object is needed"):
        DFlashConfig.from_hf(config_json() | {"dflash_config": 7})


def test_options_are_read():
    config = DFlashConfig.from_hf(
        config_json(
            DFLASH2,
            attention_value_scale=0.7,
            input_embedding_scale=2,
            output_multiplier=1.5,
            final_logit_softcapping=30.0,
            attention_bias=True,
            is_neox_style=False,
            partial_rotary_factor=0.5,
        )
    )
    assert config.attention_value_scale == 0.7
    assert config.input_embedding_scale == 2.0
    assert config.output_multiplier == 1.5
    assert config.final_logit_softcapping == 30.0
    assert config.attention_bias
    assert not config.is_neox_style
    assert config.rotary_dim == 16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 512}, "hidden_size is 512, the target's is 384"),
        ({"vocab_size": 9000}, "vocab_size is 9000, the target's is 8192"),
        ({"mask_token_id": None}, "no mask_token_id"),
        ({"mask_token_id": 8192}, "mask_token_id is 8192, the target has ids 0 to 8191"),
        ({"target_layer_ids": (1, 8)}, r"reads target layers \[8\], the target has layers 0 to 7"),
        ({"num_target_layers": 12}, "num_target_layers is 12, the target has 8 layers"),
        ({"block_size": 1}, "block_size is 1; at least 2"),
    ],
)
def test_a_target_it_wasn_t_made_for_is_refused_with_both_numbers(changes, message):
    with pytest.raises(ModelConfigError, match=message):
        replace(tiny(), **changes).check_target(ModelConfig.from_hf(TARGET_JSON))


def test_a_ring_holds_the_window_and_a_block():
    shape = tiny().draft_shape(page_size=16, max_len=8192, kv_dtype="float16")
    assert shape.ring * 16 >= 512 + 8
    assert (shape.layers, shape.kv_heads, shape.head_dim) == (3, 2, 128)
    short = tiny().draft_shape(page_size=16, max_len=64, kv_dtype="float16")
    assert short.ring * 16 == 80
