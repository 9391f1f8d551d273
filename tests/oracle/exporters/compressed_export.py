"""compressed-tensors: FP8 per channel and per block, NVFP4, packed INT4, and mixtures of them.

The package packs and records; its calibration lives elsewhere, so scales come from the extremes of
the weights through its own calculate_qparams and generate_gparam.
"""

import json
from pathlib import Path

import torch
from compressed_tensors.compressors import (
    FloatQuantizationCompressor,
    ModelCompressor,
    PackedQuantizationCompressor,
)
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    QuantizationStrategy,
    apply_quantization_config,
    preset_name_to_scheme,
)
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from compressed_tensors.quantization.utils.helpers import (
    is_module_quantized,
    maybe_pad_tensor_for_block_quant,
)
from compressed_tensors.utils.match import match_name
from transformers import PreTrainedModel

from .common import Format, Record, Tensors

METHOD = (
    "compressed_tensors: calculate_qparams, generate_gparam, apply_quantization_config, "
    "ModelCompressor.compress_model and update_config; decoded by decompress of the format's "
    "compressor, NVFP4 by unpack_fp4_from_uint8 and dequantize"
)
HEAD = ("lm_head",)
NARROW = (r"re:.*in_proj_[ab]$",)


def extremes(weight: torch.Tensor, args: QuantizationArgs) -> tuple[torch.Tensor, torch.Tensor]:
    """Smallest and largest value of every scale's part of a weight [N, K]."""
    if args.strategy == QuantizationStrategy.CHANNEL:
        return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    if args.strategy == QuantizationStrategy.BLOCK:
        rows, columns = args.block_structure
        padded = maybe_pad_tensor_for_block_quant(weight, (rows, columns))
        parts = padded.unflatten(1, (-1, columns)).unflatten(0, (-1, rows))
        return parts.amin((1, 3)), parts.amax((1, 3))
    groups = weight.unflatten(1, (-1, args.group_size))
    return groups.amin(2), groups.amax(2)


def calibrate(module: torch.nn.Module) -> None:
    """Fills the scales that apply_quantization_config left empty."""
    args, weight = module.quantization_scheme.weights, module.weight.data
    factor = None
    if hasattr(module, "weight_global_scale"):
        factor = generate_gparam(weight.amin().float(), weight.amax().float())
        module.weight_global_scale.data.copy_(factor)
    low, high = (x.float() if factor is not None else x for x in extremes(weight, args))
    scale, zero = calculate_qparams(low, high, args, global_scale=factor)
    module.weight_scale.data.copy_(scale)
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data.copy_(zero)
    if hasattr(module, "input_global_scale"):
        one = torch.tensor(4.0)
        module.input_global_scale.data.copy_(generate_gparam(-one, one))


def export_with(
    groups: dict[str, QuantizationScheme],
    ignore: tuple[str, ...],
    model: PreTrainedModel,
    folder: Path,
) -> None:
    """Quantises, packs and writes the folder."""
    config = QuantizationConfig(config_groups=groups, ignore=list(ignore))
    apply_quantization_config(model, config, show_progress=False)
    for module in model.modules():
        if is_module_quantized(module):
            calibrate(module)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(folder)


def scheme(preset: str, *targets: str, **changes: object) -> QuantizationScheme:
    """A preset of the package for some modules, with changed fields of its weights."""
    found = preset_name_to_scheme(preset, list(targets) or ["Linear"])
    for field, value in changes.items():
        setattr(found.weights, field, value)
    return found


def scheme_of(module: str, record: Record) -> QuantizationScheme:
    """The group of a module in a quantization_config."""
    known = QuantizationConfig.model_fields
    config = QuantizationConfig.model_validate({k: v for k, v in record.items() if k in known})
    for group in config.config_groups.values():
        if any(target == "Linear" or match_name(module, target) for target in group.targets):
            return group
    raise ValueError(f"{module} is in no group of {json.dumps(record)}")


def decode(module: str, tensors: Tensors, record: Record) -> torch.Tensor:
    group, wide = scheme_of(module, record), dict(tensors)
    wide["weight_scale"] = tensors["weight_scale"].double()
    if "weight_global_scale" in tensors:
        packed = tensors["weight_packed"]
        codes = unpack_fp4_from_uint8(packed, packed.shape[0], packed.shape[1] * 2, torch.float64)
        factor = tensors["weight_global_scale"].double()
        return dequantize(codes, wide["weight_scale"], None, group.weights, global_scale=factor)
    kind = PackedQuantizationCompressor if "weight_packed" in wide else FloatQuantizationCompressor
    return kind.decompress(wide, group)["weight"]


def _format(
    name: str,
    groups: dict[str, QuantizationScheme],
    shapes: dict[str, tuple[int, int]],
    ignore: tuple[str, ...] = HEAD + NARROW,
) -> Format:
    return Format(
        name=name,
        export=lambda model, folder: export_with(groups, ignore, model, folder),
        decode=decode,
        shapes=shapes,
        packages=("compressed-tensors",),
        method=METHOD,
    )


def mixed() -> dict[str, QuantizationScheme]:
    """FP8 per channel for attention, all out_proj, head and the last MLP; NVFP4 for the others."""
    fp8 = (r"re:.*self_attn\..*", "re:.*out_proj$", "lm_head", r"re:.*layers\.3\.mlp\..*")
    nvfp4 = (r"re:.*layers\.[0-2]\.mlp\.(gate|up|down)_proj$", "re:.*in_proj_(qkv|z)$")
    return {"group_0": scheme("FP8_DYNAMIC", *fp8), "group_1": scheme("NVFP4", *nvfp4)}


FORMATS = (
    _format(
        "compressed_fp8_channel",
        {"group_0": scheme("FP8_DYNAMIC")},
        {"mlp.up_proj": (64, 256), "mlp.down_proj": (44, 104)},
    ),
    _format(
        "compressed_fp8_block",
        {"group_0": scheme("FP8_BLOCK")},
        {"mlp.up_proj": (32, 256), "mlp.down_proj": (136, 144)},
    ),
    # The projections of 8 rows are quantised too, as in the all-NVFP4 release.
    _format(
        "compressed_nvfp4",
        {"group_0": scheme("NVFP4")},
        {"mlp.up_proj": (64, 256), "linear_attn.in_proj_a": (12, 112)},
        ignore=HEAD,
    ),
    _format(
        "compressed_int4",
        {"group_0": scheme("W4A16")},
        {"mlp.up_proj": (64, 256), "mlp.down_proj": (44, 128)},
    ),
    _format(
        "compressed_int4_g32",
        {"group_0": scheme("W4A16", group_size=32)},
        {"mlp.up_proj": (64, 128), "mlp.down_proj": (44, 96)},
    ),
    _format(
        "compressed_int4_zero",
        {"group_0": scheme("W4A16_ASYM")},
        {"mlp.up_proj": (64, 256), "mlp.down_proj": (44, 128)},
    ),
    _format(
        "compressed_int4_zero_g32",
        {"group_0": scheme("W4A16_ASYM", group_size=32)},
        {"mlp.up_proj": (64, 128), "mlp.down_proj": (44, 96)},
    ),
    _format(
        "compressed_mixed",
        mixed(),
        {"mlp.up_proj": (64, 128), "linear_attn.out_proj": (44, 104)},
        ignore=NARROW,
    ),
)
