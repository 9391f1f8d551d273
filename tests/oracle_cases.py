"""The twelve Qwen3.5 dense geometries of the parity tests: small, unlike in all a layer depends on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LINEAR, FULL = "linear_attention", "full_attention"


@dataclass(frozen=True)
class Case:
    """One random model and the tokens it is run on.

    Attributes:
      config: text config as a Hugging Face config.json holds it.
      prompt_length: tokens before the teacher-forced ones.
      chunkings: three ways to split the prompt, the first on the grid of 64.
    """

    name: str
    seed: int
    prompt_length: int
    config: Mapping[str, Any]
    chunkings: tuple[tuple[int, ...], ...]


def layer_types(config: Mapping[str, Any]) -> list[str]:
    """The kind of each layer, from the list or from the interval."""
    if "layer_types" in config:
        return list(config["layer_types"])
    every = config["full_attention_interval"]
    return [FULL if (i + 1) % every == 0 else LINEAR for i in range(config["num_hidden_layers"])]


def _config(
    *,
    hidden: int,
    inter: int,
    heads: tuple[int, int, int],
    gdn: tuple[int, int, int, int],
    conv: int,
    layers: int,
    vocab: int,
    partial: float,
    tied: bool,
    theta: float = 10000.0,
    eps: float = 1e-6,
    **pattern: Any,
) -> dict[str, Any]:
    """`heads` is (query, kv, head_dim); `gdn` is (key heads, value heads, key dim, value dim)."""
    half = int(heads[2] * partial) // 2
    third = half // 3
    rope = {
        "rope_type": "default",
        "rope_theta": theta,
        "partial_rotary_factor": partial,
        "mrope_section": [half - 2 * third, third, third],
        "mrope_interleaved": True,
    }
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inter,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": heads[2],
        "linear_num_key_heads": gdn[0],
        "linear_num_value_heads": gdn[1],
        "linear_key_head_dim": gdn[2],
        "linear_value_head_dim": gdn[3],
        "linear_conv_kernel_dim": conv,
        "rms_norm_eps": eps,
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
        "max_position_embeddings": 1024,
        "rope_parameters": rope,
        "eos_token_id": 0,
        **pattern,
    }


CASES: tuple[Case, ...] = (
    Case(
        "gqa2_interval4",
        101,
        96,
        _config(
            hidden=64,
            inter=96,
            heads=(4, 2, 16),
            gdn=(2, 6, 8, 8),
            conv=4,
            layers=4,
            vocab=128,
            partial=0.5,
            tied=False,
            full_attention_interval=4,
        ),
        ((64, 32), (1, 94, 1), (37, 40, 19)),
    ),
    Case(
        "mha_interval2_tied",
        102,
        75,
        _config(
            hidden=96,
            inter=160,
            heads=(4, 4, 32),
            gdn=(4, 4, 16, 16),
            conv=3,
            layers=6,
            vocab=96,
            partial=0.25,
            tied=True,
            theta=1e6,
            full_attention_interval=2,
        ),
        ((64, 11), (74, 1), (10, 25, 40)),
    ),
    Case(
        "gqa4_all_full",
        103,
        110,
        _config(
            hidden=64,
            inter=128,
            heads=(8, 2, 24),
            gdn=(2, 4, 8, 8),
            conv=4,
            layers=3,
            vocab=96,
            partial=1.0,
            tied=False,
            eps=1e-5,
            full_attention_interval=1,
        ),
        ((64, 46), (109, 1), (5, 60, 45)),
    ),
    Case(
        "all_linear_ratio3",
        104,
        140,
        _config(
            hidden=80,
            inter=112,
            heads=(2, 1, 16),
            gdn=(2, 6, 24, 16),
            conv=4,
            layers=4,
            vocab=80,
            partial=0.5,
            tied=True,
            layer_types=[LINEAR] * 4,
        ),
        ((64, 64, 12), (128, 12), (63, 2, 75)),
    ),
    Case(
        "gqa6_irregular",
        105,
        130,
        _config(
            hidden=96,
            inter=144,
            heads=(12, 2, 16),
            gdn=(2, 4, 16, 32),
            conv=2,
            layers=7,
            vocab=112,
            partial=0.25,
            tied=False,
            theta=1e7,
            eps=1e-5,
            layer_types=[FULL, LINEAR, LINEAR, FULL, FULL, LINEAR, FULL],
        ),
        ((64, 64, 2), (65, 65), (127, 2, 1)),
    ),
    Case(
        "five_layers_interval4",
        106,
        70,
        _config(
            hidden=128,
            inter=192,
            heads=(6, 3, 32),
            gdn=(3, 9, 16, 16),
            conv=4,
            layers=5,
            vocab=64,
            partial=0.5,
            tied=True,
            eps=1e-6,
            full_attention_interval=4,
        ),
        ((64, 6), (6, 64), (20, 1, 49)),
    ),
    Case(
        "odd_sizes",
        107,
        101,
        _config(
            hidden=100,
            inter=141,
            heads=(3, 1, 20),
            gdn=(3, 6, 12, 20),
            conv=3,
            layers=4,
            vocab=97,
            partial=0.5,
            tied=False,
            eps=1e-4,
            full_attention_interval=2,
        ),
        ((64, 37), (50, 51), (99, 2)),
    ),
    Case(
        "mha_linear_last",
        108,
        129,
        _config(
            hidden=64,
            inter=96,
            heads=(2, 2, 64),
            gdn=(4, 8, 32, 16),
            conv=2,
            layers=6,
            vocab=72,
            partial=0.25,
            tied=False,
            eps=1e-5,
            layer_types=[LINEAR, FULL, FULL, LINEAR, LINEAR, LINEAR],
        ),
        ((64, 65), (128, 1), (31, 33, 65)),
    ),
    Case(
        "wide_gqa6_ratio3",
        109,
        200,
        _config(
            hidden=256,
            inter=512,
            heads=(6, 1, 256),
            gdn=(1, 3, 128, 128),
            conv=4,
            layers=4,
            vocab=96,
            partial=0.25,
            tied=False,
            theta=1e7,
            full_attention_interval=4,
        ),
        ((64, 64, 64, 8), (128, 72), (101, 99)),
    ),
    Case(
        "wide_gqa2_ratio3_tied",
        110,
        259,
        _config(
            hidden=192,
            inter=384,
            heads=(4, 2, 256),
            gdn=(2, 6, 128, 128),
            conv=4,
            layers=8,
            vocab=64,
            partial=0.25,
            tied=True,
            theta=1e6,
            full_attention_interval=4,
        ),
        ((64, 64, 64, 64, 3), (192, 67), (200, 59)),
    ),
    Case(
        "four_ranks_gqa4",
        111,
        133,
        _config(
            hidden=128,
            inter=192,
            heads=(8, 2, 32),
            gdn=(4, 12, 16, 16),
            conv=4,
            layers=8,
            vocab=128,
            partial=0.25,
            tied=False,
            theta=1e6,
            full_attention_interval=4,
        ),
        ((64, 64, 5), (100, 33), (1, 131, 1)),
    ),
    Case(
        "four_ranks_one_kv_head",
        112,
        90,
        _config(
            hidden=96,
            inter=128,
            heads=(8, 1, 48),
            gdn=(8, 8, 16, 32),
            conv=3,
            layers=6,
            vocab=64,
            partial=0.5,
            tied=True,
            layer_types=[LINEAR, FULL, FULL, LINEAR, LINEAR, FULL],
        ),
        ((64, 26), (89, 1), (30, 30, 30)),
    ),
)
