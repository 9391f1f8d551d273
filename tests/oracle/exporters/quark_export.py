"""Quark W4A16: int4 and uint4 weights per group, packed along the output axis in both orders."""

from pathlib import Path

import torch
from quark.torch import ModelQuantizer, export_safetensors
from quark.torch.export.nn.modules.realquantizer import get_real_quantizer
from quark.torch.quantization.config.config import (
    Int4PerGroupSpec,
    QConfig,
    QLayerConfig,
    QTensorConfig,
    Uint4PerGroupSpec,
)
from transformers import PreTrainedModel

from .common import Format, Record, Tensors

EXCLUDE = ("*lm_head", "*in_proj_a", "*in_proj_b")
SPECS = {"int4": (Int4PerGroupSpec, True), "uint4": (Uint4PerGroupSpec, False)}


def export(model: PreTrainedModel, folder: Path, dtype: str, order: str, group: int) -> None:
    spec, symmetric = SPECS[dtype]
    weight = spec(ch_axis=-1, group_size=group, symmetric=symmetric).to_quantization_spec()
    config = QConfig(global_quant_config=QLayerConfig(weight=weight), exclude=list(EXCLUDE))
    quantiser = ModelQuantizer(config)
    frozen = quantiser.freeze(quantiser.quantize_model(model, [torch.arange(1, 9)[None]]))
    export_safetensors(frozen, str(folder), pack_method=order)


def decode(module: str, tensors: Tensors, record: Record) -> torch.Tensor:
    spec = QTensorConfig.from_dict(record["global_quant_config"]["weight"])
    quantiser = get_real_quantizer(
        qspec=spec,
        quantizer=None,
        reorder=record["export"]["pack_method"] == "reorder",
        real_quantized=True,
        float_dtype=torch.float64,
        device=torch.device("cpu"),
        scale_shape=tuple(tensors["weight_scale"].shape),
        zero_point_shape=tuple(tensors["weight_zero_point"].shape),
    )
    quantiser.scale = tensors["weight_scale"].double()
    quantiser.zero_point = tensors["weight_zero_point"]
    return quantiser(tensors["weight"])


def _format(dtype: str, order: str, group: int, shapes: dict[str, tuple[int, int]]) -> Format:
    return Format(
        name=f"quark_{dtype}_{order}_g{group}",
        export=lambda model, folder: export(model, folder, dtype, order, group),
        decode=decode,
        shapes=shapes,
        packages=("amd-quark",),
        method=(
            "quark.torch.ModelQuantizer, export_safetensors; decoded by "
            "quark.torch.export.nn.modules.realquantizer.get_real_quantizer"
        ),
    )


# 44 rows: the last word of every row of the packed matrix is half empty.
WIDE = {"mlp.up_proj": (64, 256), "mlp.down_proj": (44, 128)}
NARROW = {"mlp.up_proj": (64, 128), "mlp.down_proj": (44, 96)}
FORMATS = (
    _format("int4", "reorder", 128, WIDE),
    _format("int4", "order", 32, NARROW),
    _format("uint4", "reorder", 32, NARROW),
    _format("uint4", "order", 128, WIDE),
)
