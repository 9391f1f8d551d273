"""The model of the committed checkpoints of weight formats, and their logits.

Four layers, three of them delta-net. Everything divides by four ranks: groups of 32 survive the
split of every input axis, words of eight columns that of every output axis.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from format_decode import decode
from format_goldens import CHECKPOINTS, read_safetensors
from oracle_cases import Case

CASE = Case(
    "formats",
    401,
    32,
    {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": 64,
        "hidden_size": 128,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "full_attention_interval": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "max_position_embeddings": 1024,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
        "eos_token_id": 0,
    },
    ((32,),),
)


@dataclass(frozen=True)
class CheckpointGolden:
    """A checkpoint folder and what the PyTorch model makes of its decoded weights."""

    folder: Path
    ids: np.ndarray  # int32 [T]
    logits: np.ndarray  # float32 [T, V] of one forward over all of ids


def checkpoint_names() -> list[str]:
    """The committed ones, in order."""
    return sorted(path.parent.name for path in CHECKPOINTS.glob("*/logits.npz"))


def load_checkpoint_golden(name: str) -> CheckpointGolden:
    """One committed checkpoint.

    Raises:
      FileNotFoundError: there is none of this name.
    """
    folder = CHECKPOINTS / name
    with np.load(folder / "logits.npz") as stored:
        return CheckpointGolden(folder, stored["ids"], stored["logits"])


def decoded_weights(folder: Path) -> dict[str, np.ndarray]:
    """Every parameter in float32 under its plain name, read by the tests' own decoder."""
    tensors = read_safetensors(folder / "model.safetensors")
    record = json.loads((folder / "config.json").read_text())["quantization_config"]
    modules: dict[str, dict[str, np.ndarray]] = {}
    for name, tensor in tensors.items():
        module, _, suffix = name.replace("model.language_model.", "model.").rpartition(".")
        if suffix not in ("k_scale", "v_scale"):
            modules.setdefault(module, {})[suffix] = tensor
    weights = {}
    for module, parts in modules.items():
        if any("scale" in suffix for suffix in parts):
            weights[f"{module}.weight"] = decode(parts, record).astype(np.float32)
        else:
            weights |= {f"{module}.{k}": v.astype(np.float32) for k, v in parts.items()}
    return weights
