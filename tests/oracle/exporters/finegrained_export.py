"""FP8 with one scale per 128x128 block under the official names: weight and weight_scale_inv.

transformers rounds and names; its rule leaves sizes alone that are no multiple of 128. Those (the
published files have them) are rounded by compressed-tensors' block strategy, whose tensors are the
same but for the name of the scale, with BF16 scales as in the published 27B files.
"""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from compressed_tensors.compressors import FloatQuantizationCompressor
from compressed_tensors.entrypoints.convert.converters import FP8BlockDequantizer
from compressed_tensors.quantization import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams
from transformers import FineGrainedFP8Config, PreTrainedModel
from transformers.integrations.finegrained_fp8 import Fp8Quantize

from .common import Format, Record, Tensors, dense_recipe, linears, write_folder
from .compressed_export import extremes

BLOCK = 128


def by_transformers(weight: torch.Tensor, config: FineGrainedFP8Config) -> dict[str, torch.Tensor]:
    """F32 scales. The weight [N, K] has multiples of 128."""
    quantiser = Fp8Quantize(SimpleNamespace(quantization_config=config))
    return quantiser.convert({"weight": weight})


def by_compressed_tensors(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """BF16 scales; any sizes."""
    scheme = preset_name_to_scheme("FP8_BLOCK", ["Linear"])
    scale, zero = calculate_qparams(*extremes(weight, scheme.weights), scheme.weights)
    state = {"weight": weight, "weight_scale": scale.bfloat16(), "weight_zero_point": zero}
    stored = FloatQuantizationCompressor.compress(state, scheme)
    return {"weight": stored["weight"], "weight_scale_inv": stored["weight_scale"]}


def export(model: PreTrainedModel, folder: Path) -> None:
    skipped = [name for name in linears(model, lambda _: False) if dense_recipe(name)]
    config = FineGrainedFP8Config(weight_block_size=(BLOCK, BLOCK), modules_to_not_convert=skipped)
    packed = {}
    for name, module in linears(model, dense_recipe).items():
        weight = module.weight.data
        whole = all(size % BLOCK == 0 for size in weight.shape)
        packed[name] = by_transformers(weight, config) if whole else by_compressed_tensors(weight)
    write_folder(model, folder, packed, config.to_dict())


def decode(module: str, tensors: Tensors, record: Record) -> torch.Tensor:
    """float32 arithmetic: the product of E4M3 and a float32 scale, rounded once."""
    block = tuple(record["weight_block_size"])
    widen = partial(FP8BlockDequantizer, weight_block_size=block, dtype=torch.float64)
    named = {f"{module}.{suffix}": tensor for suffix, tensor in tensors.items()}
    return widen().process(named)[f"{module}.weight"]


FORMATS = (
    Format(
        name="fp8_block",
        export=export,
        decode=decode,
        shapes={"mlp.up_proj": (128, 256), "mlp.down_proj": (136, 144)},
        packages=("transformers", "compressed-tensors"),
        method=(
            "transformers.integrations.finegrained_fp8.Fp8Quantize for multiples of 128, "
            "compressed_tensors FloatQuantizationCompressor (block strategy) for other sizes; "
            "decoded by compressed_tensors FP8BlockDequantizer"
        ),
    ),
)
