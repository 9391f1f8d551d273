"""The DFlash drafts of the goldens: small, and each unlike the others in one thing a draft's configuration can say."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MASK = 255  # of a vocabulary of 256
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class DraftCase:
    """One random draft, the context it looks back on and the token that it continues.

    Attributes:
      config: as the draft's config.json holds it.
      context: tokens in the state; the anchor is at this position.
      mask_row: the checkpoint carries a `mask_embedding` of its own.
    """

    name: str
    seed: int
    config: Mapping[str, Any]
    context: int = 40
    mask_row: bool = False


def _config(
    *,
    version: int = 2,
    hidden: int = 64,
    inter: int = 96,
    layers: int = 2,
    heads: tuple[int, int, int] = (4, 2, 16),
    target_layers: int = 8,
    block: int = 8,
    taps: list[int] | None = None,
    theta: float = 1e4,
    draft: Mapping[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """`heads` is (query, kv, head_dim); `draft` adds to dflash_config, other fields to the top level."""
    conv = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 24, "selector_top_k": 16}
    inner = {"block_size": block, "mask_token_id": MASK, "target_layer_ids": taps or [1, 4, 6]}
    inner |= (conv if version == 2 else {}) | dict(draft or {})
    return {
        "architectures": ["DFlash2DraftModel" if version == 2 else "DFlashDraftModel"],
        "model_type": "qwen3",
        "vocab_size": 256,
        "hidden_size": hidden,
        "intermediate_size": inter,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": heads[2],
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "layer_types": [FULL] * layers,
        "num_target_layers": target_layers,
        "max_position_embeddings": 1024,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "dflash_config": inner,
    } | fields


def _without_taps(config: dict[str, Any]) -> dict[str, Any]:
    inner = {k: v for k, v in config["dflash_config"].items() if k != "target_layer_ids"}
    return config | {"dflash_config": inner}


def _old_form(config: dict[str, Any]) -> dict[str, Any]:
    """The first drafts' form: block size and mask token at the top level."""
    inner = dict(config["dflash_config"])
    moved = {key: inner.pop(key) for key in ("block_size", "mask_token_id")}
    return config | moved | {"dflash_config": inner}


_SLIDING = {"layer_types": [SLIDING] * 2, "sliding_window": 24}

CASES: tuple[DraftCase, ...] = (
    DraftCase("v1_block16", 201, _config(version=1, block=16)),
    DraftCase("v1_old_form", 202, _old_form(_config(version=1, block=16, taps=[2, 5]))),
    DraftCase("v1_causal_by_layer", 203, _config(version=1, block=16, **_SLIDING)),
    DraftCase(
        "v1_mixed_layers",
        204,
        _config(
            version=1, layers=3, layer_types=[SLIDING, FULL, SLIDING], sliding_window=20, theta=1e6
        ),
    ),
    DraftCase("v1_mask_row", 205, _config(version=1), mask_row=True),
    DraftCase("v1_draft_vocab", 206, _config(version=1, draft_vocab_size=96)),
    DraftCase("v2_taps2", 207, _config()),
    DraftCase(
        "v2_taps3_groups",
        208,
        _config(
            hidden=96,
            inter=160,
            layers=3,
            heads=(4, 2, 32),
            draft={"conv_kernel_size": 3, "conv_group_size": 8, "selector_rank": 40},
            rms_norm_eps=1e-5,
        ),
        context=43,
    ),
    DraftCase("v2_block6_top8", 209, _config(block=6, draft={"selector_top_k": 8}), context=37),
    DraftCase("v2_sliding_not_causal", 210, _config(**_SLIDING, is_causal=False, heads=(8, 2, 32))),
    DraftCase("v2_swa_window", 211, _config(draft={"use_swa": True, "swa_window_size": 12})),
    DraftCase("v2_value_scale", 212, _config(draft={"attention_value_scale": 0.6})),
    DraftCase("v2_embedding_scale", 213, _config(draft={"input_embedding_scale": 1.7})),
    DraftCase("v2_multiplier", 214, _config(draft={"output_multiplier": 0.35})),
    DraftCase("v2_softcap", 215, _config(draft={"final_logit_softcapping": 1.5})),
    DraftCase("v2_interleaved_rope", 236, _config(is_neox_style=False)),
    DraftCase("v2_causal", 217, _config(is_causal=True)),
    DraftCase("v2_causal_inner", 218, _config(draft={"causal": False}, **_SLIDING)),
    DraftCase("v2_default_taps", 219, _without_taps(_config(layers=3, target_layers=11))),
    DraftCase(
        "v2_everything",
        220,
        _config(
            heads=(4, 4, 16),
            draft={
                "attention_value_scale": 0.8,
                "input_embedding_scale": 1.3,
                "output_multiplier": 0.7,
                "final_logit_softcapping": 4.0,
                "use_swa": True,
                "swa_window_size": 17,
                "conv_kernel_size": 3,
            },
        ),
        context=41,
        mask_row=True,
    ),
)
CASES_BY_NAME = {case.name: case for case in CASES}
PACKED = ("v1_block16", "v2_taps2", "v2_swa_window", "v2_causal")
ANCHORS = (3, 11, 12, 24)  # of the packed form; position of each block's first row
