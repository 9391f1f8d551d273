"""Loads a dense Qwen3.5 checkpoint folder, of whatever format, into the PyTorch implementation.

transformers doesn't read ModelOpt NVFP4, so the weights are expanded here: independently of the
engine's own reader, which makes this the oracle of the format too.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

# Values of the eight E2M1 magnitudes; bit 3 of a code is the sign.
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_GROUP = 16


def expand_nvfp4(packed: torch.Tensor, scale: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """float32 [N, K] from U8 [N, K/2] (low nibble = even k), E4M3 [N, K/16] and a scalar."""
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1).long()
    values = torch.where(codes > 7, -_E2M1[codes & 7], _E2M1[codes & 7])
    return values * scale.float().repeat_interleave(_GROUP, dim=1) * factor.float()


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors as float32 under their plain names, without the MTP head."""
    stored: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        stored.update(load_file(file))
    weights = {}
    for name, tensor in stored.items():
        if name.startswith("mtp.") or name.endswith(("_scale", "_scale_2")):
            continue
        if tensor.dtype == torch.uint8:
            tensor = expand_nvfp4(tensor, stored[f"{name}_scale"], stored[f"{name}_scale_2"])
        weights[name] = tensor.float()
    return weights


def load_model(
    folder: Path, dtype: torch.dtype = torch.float32, attention: str = "eager"
) -> Qwen3_5ForCausalLM:
    """The PyTorch model in `dtype`.

    Raises:
      ValueError: the folder lacks a parameter or holds one the model doesn't have.
    """
    fields = json.loads((folder / "config.json").read_text())
    fields = fields.get("text_config", fields)
    config = Qwen3_5TextConfig(**{k: v for k, v in fields.items() if k != "quantization_config"})
    config._attn_implementation = attention
    model = Qwen3_5ForCausalLM(config)
    missing, unexpected = model.load_state_dict(load_weights(folder), strict=False)
    allowed = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if set(missing) - allowed or unexpected:
        raise ValueError(f"{folder}: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    return model.to(dtype).eval()
