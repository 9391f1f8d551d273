"""compressed-tensors INT4 with activation order: weight_g_idx tells the group of every column.

The package dropped this layout in 2026 and files that have it remain, so an older release writes it
(0.12 is known to). It computes no order, which the quantiser of that time took from the calibration;
here the order is drawn. Columns stay where they were: only the groups are scattered.
"""

import json
from pathlib import Path

import compressed_tensors
import torch
from compressed_tensors.compressors.quantized_compressors.pack_quantized import (
    PackedQuantizationCompressor,
    unpack_from_int32,
)
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams
from transformers import PreTrainedModel

from .common import Format, Record, Tensors, dense_recipe, linears, write_folder

BITS = 4


def column_groups(columns: int, group: int) -> torch.Tensor:
    """int32 [K]: every group has `group` columns, drawn from anywhere."""
    order = torch.randperm(columns, generator=torch.Generator().manual_seed(columns))
    return (torch.argsort(order) // group).int()


def pack(weight: torch.Tensor, args: QuantizationArgs) -> dict[str, torch.Tensor]:
    groups = column_groups(weight.shape[1], args.group_size)
    gathered = weight[:, torch.argsort(groups, stable=True)].unflatten(1, (-1, args.group_size))
    scale, zero = calculate_qparams(gathered.amin(2), gathered.amax(2), args)
    packer = PackedQuantizationCompressor()
    stored = packer.compress_weight(weight, scale, args, zero_point=zero, g_idx=groups)
    return stored | {"weight_scale": scale, "weight_g_idx": groups}


def record_of(args: QuantizationArgs, ignore: list[str]) -> dict:
    groups = {"group_0": QuantizationScheme(targets=["Linear"], weights=args)}
    config = QuantizationConfig(
        config_groups=groups,
        ignore=ignore,
        format="pack-quantized",
        quantization_status="compressed",
    )
    fields = json.loads(config.model_dump_json())
    return {
        "quant_method": "compressed-tensors",
        "version": compressed_tensors.__version__,
    } | fields


def export(model: PreTrainedModel, folder: Path, group: int, symmetric: bool) -> None:
    args = QuantizationArgs(
        num_bits=BITS, strategy="group", group_size=group, symmetric=symmetric, actorder="group"
    )
    ignore = [name for name in linears(model, lambda _: False) if dense_recipe(name)]
    chosen = linears(model, dense_recipe)
    packed = {name: pack(module.weight.data, args) for name, module in chosen.items()}
    write_folder(model, folder, packed, record_of(args, ignore))


def decode(module: str, tensors: Tensors, record: Record) -> torch.Tensor:
    args = QuantizationArgs(**record["config_groups"]["group_0"]["weights"])
    scale = tensors["weight_scale"].double()
    shape = torch.Size(tensors["weight_shape"].tolist())
    zero = None
    if not args.symmetric:
        zero = unpack_from_int32(
            tensors["weight_zero_point"], BITS, torch.Size((shape[0], scale.shape[1])), packed_dim=0
        )
    codes = unpack_from_int32(tensors["weight_packed"], BITS, shape)
    return dequantize(codes, scale, zero, args, g_idx=tensors["weight_g_idx"])


def _format(name: str, group: int, symmetric: bool, shapes: dict[str, tuple[int, int]]) -> Format:
    return Format(
        name=name,
        export=lambda model, folder: export(model, folder, group, symmetric),
        decode=decode,
        shapes=shapes,
        packages=("compressed-tensors",),
        method=(
            "compressed_tensors: calculate_qparams, PackedQuantizationCompressor.compress_weight "
            "with g_idx; decoded by unpack_from_int32 and dequantize with g_idx"
        ),
    )


FORMATS = (
    _format(
        "compressed_int4_order",
        128,
        True,
        {"mlp.up_proj": (64, 256), "mlp.down_proj": (44, 128)},
    ),
    _format(
        "compressed_int4_order_zero_g32",
        32,
        False,
        {"mlp.up_proj": (64, 128), "mlp.down_proj": (44, 96)},
    ),
)
