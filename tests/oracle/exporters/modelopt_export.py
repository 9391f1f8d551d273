"""ModelOpt: FP8 per tensor, per channel and per block, NVFP4, and mixtures of them.

mtq.quantize and export_hf_checkpoint are the public way; the layer patterns below are those of the
published recipes.
"""

import copy
from pathlib import Path
from typing import Any

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor
from transformers import PreTrainedModel

from .common import Format, Record, Tensors

BLOCK = 128
METHOD = (
    "modelopt.torch.quantization.quantize, modelopt.torch.export.export_hf_checkpoint; "
    "decoded by FP8QTensor.dequantize and NVFP4QTensor.dequantize"
)
FP8 = {"num_bits": (4, 3), "axis": None}


def export_with(config: dict[str, Any], model: PreTrainedModel, folder: Path) -> None:
    """Calibrates with one short prompt and writes the folder."""
    prompt = torch.arange(1, 9)[None]
    quantised = mtq.quantize(model, copy.deepcopy(config), lambda m: m(prompt))
    export_hf_checkpoint(quantised, export_dir=folder)


def preset(name: str, *more: dict[str, Any]) -> dict[str, Any]:
    """A preset of the package with further rules, which win over its own."""
    config = copy.deepcopy(getattr(mtq, name))
    config["quant_cfg"].extend(more)
    return config


def rules(pattern: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> list[dict]:
    """Both quantizers of the modules that a pattern matches."""
    activations = {"quantizer_name": f"{pattern}input_quantizer"}
    activations |= {"enable": False} if inputs is None else {"cfg": inputs, "enable": True}
    return [
        {"quantizer_name": f"{pattern}weight_quantizer", "cfg": weights, "enable": True},
        activations,
    ]


def mixed() -> dict[str, Any]:
    """NVFP4 for MLP and head, FP8 per tensor for attention and delta-net, FP8 for the KV cache."""
    config = preset("NVFP4_DEFAULT_CFG")
    nvfp4 = {**next(r for r in config["quant_cfg"] if r["quantizer_name"] == "*weight_quantizer")}
    for pattern in ("*self_attn.*", "*linear_attn.in_proj_qkv*", "*linear_attn.in_proj_z*"):
        config["quant_cfg"] += rules(pattern, FP8, FP8)
    config["quant_cfg"] += rules("*linear_attn.out_proj*", FP8, FP8)
    config["quant_cfg"] += rules("*lm_head*", nvfp4["cfg"], nvfp4["cfg"])
    config["quant_cfg"] += copy.deepcopy(mtq.FP8_KV_CFG["quant_cfg"])
    return config


def decode(module: str, tensors: Tensors, record: Record) -> torch.Tensor:
    weight, scale = tensors["weight"], tensors["weight_scale"].double()
    if weight.dtype == torch.uint8:
        shape = torch.Size((weight.shape[0], weight.shape[1] * 2))
        stored = NVFP4QTensor(shape, torch.float64, weight)
        # One axis more keeps the product of the scales in float64.
        double_scale = tensors["weight_scale_2"].double().reshape(1)
        return stored.dequantize(
            torch.float64, scale=scale, double_scale=double_scale, block_sizes={-1: 16}
        )
    stored = FP8QTensor(weight.shape, torch.float64, weight)
    if record["quant_algo"].upper() != "FP8_PB_WO":
        return stored.dequantize(torch.float64, scale=scale[..., None] if scale.ndim else scale)
    grid = [-(-size // BLOCK) for size in weight.shape]
    blocks = {-1: BLOCK, -2: BLOCK}
    return stored.dequantize(torch.float64, scale=scale.reshape(grid), block_sizes=blocks)


def _format(name: str, config: dict[str, Any], shapes: dict[str, tuple[int, int]]) -> Format:
    return Format(
        name=name,
        export=lambda model, folder: export_with(config, model, folder),
        decode=decode,
        shapes=shapes,
        packages=("nvidia-modelopt",),
        method=METHOD,
    )


FORMATS = (
    _format(
        "modelopt_fp8",
        preset("FP8_DEFAULT_CFG"),
        {"mlp.up_proj": (64, 256), "mlp.down_proj": (44, 104)},
    ),
    _format(
        "modelopt_fp8_channel",
        preset("FP8_PER_CHANNEL_PER_TOKEN_CFG"),
        {"mlp.up_proj": (32, 128), "mlp.down_proj": (44, 104)},
    ),
    # Third: one block, whose scale the exporter stores without an axis.
    _format(
        "modelopt_fp8_block",
        preset("FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG"),
        {"mlp.up_proj": (64, 256), "mlp.down_proj": (136, 144), "mlp.gate_proj": (44, 96)},
    ),
    _format(
        "modelopt_nvfp4",
        preset("NVFP4_DEFAULT_CFG"),
        {"mlp.up_proj": (64, 256), "mlp.down_proj": (44, 112)},
    ),
    _format(
        "modelopt_w4a16_nvfp4",
        preset("W4A16_NVFP4_CFG"),
        {"mlp.up_proj": (32, 128), "mlp.down_proj": (44, 112)},
    ),
    _format(
        "modelopt_mixed",
        mixed(),
        {"mlp.up_proj": (64, 128), "linear_attn.out_proj": (44, 112)},
    ),
)
