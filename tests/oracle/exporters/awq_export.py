"""AutoAWQ, gemm: unsigned nibbles packed along the output axis in its interleaved order.

The rounding and packing run as AutoAWQ's own code without its search for activation scales. Its
package module imports model classes that current transformers no longer has, and a reader of
calibration data that isn't needed here, so both are set aside before the import.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch
from transformers import PreTrainedModel

from .common import Format, Record, Tensors, dense_recipe, linears, write_folder


def _set_aside(name: str, path: list[str]) -> None:
    """A package under this name that holds its submodules but runs no __init__."""
    module = ModuleType(name)
    module.__path__ = path
    sys.modules[name] = module


def _import_awq() -> None:
    """Imports what is used below under the packages' own names."""
    spec = importlib.util.find_spec("awq")
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError("autoawq isn't installed")
    root = Path(next(iter(spec.submodule_search_locations)))
    for name in ("awq", "awq.quantize", "awq.models"):
        _set_aside(name, [str(root.joinpath(*name.split(".")[1:]))])
    stub = ModuleType("datasets")
    stub.load_dataset = None
    absent = sys.modules.setdefault("datasets", stub) is stub
    importlib.import_module("awq.quantize.quantizer")
    if absent:
        del sys.modules["datasets"]


_import_awq()
from awq.models._config import AwqConfig  # noqa: E402
from awq.quantize.quantizer import AwqQuantizer  # noqa: E402
from awq.utils.packing_utils import dequantize_gemm  # noqa: E402

BITS = 4


def pack(model: PreTrainedModel, name: str, group: int) -> dict[str, torch.Tensor]:
    """Replaces a linear by AutoAWQ's and returns its tensors."""
    quantiser = AwqQuantizer.__new__(AwqQuantizer)
    quantiser.w_bit, quantiser.group_size = BITS, group
    quantiser.zero_point, quantiser.version = True, "gemm"
    quantiser._apply_quant(model, {name: model.get_submodule(name)})
    packed = model.get_submodule(name)
    return {"qweight": packed.qweight, "qzeros": packed.qzeros, "scales": packed.scales}


def export(model: PreTrainedModel, folder: Path, group: int) -> None:
    """float16 throughout, which is what AutoAWQ computes in."""
    model.half()
    chosen = linears(model, dense_recipe)
    skipped = sorted({name.rsplit(".", 1)[-1] for name in linears(model, lambda _: False)} - {
        name.rsplit(".", 1)[-1] for name in chosen
    })  # fmt: skip
    weights = {name: module.weight for name, module in chosen.items()}
    packed = {name: pack(model, name, group) for name in chosen}
    for name, weight in weights.items():
        _, _, leaf = name.rpartition(".")
        parent = model.get_submodule(name.removesuffix(f".{leaf}"))
        restored = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        restored.weight = weight
        setattr(parent, leaf, restored)
    record = AwqConfig(q_group_size=group, w_bit=BITS, modules_to_not_convert=skipped or None)
    write_folder(model, folder, packed, record.to_transformers_dict())


def decode(module: str, tensors: Tensors, record: Record) -> torch.Tensor:
    """[N, K]; AutoAWQ's own result is [K, N]."""
    found = dequantize_gemm(
        tensors["qweight"],
        tensors["qzeros"],
        tensors["scales"].double(),
        record["bits"],
        record["group_size"],
    )
    return found.t()


def _format(name: str, group: int, shapes: dict[str, tuple[int, int]]) -> Format:
    return Format(
        name=name,
        export=lambda model, folder: export(model, folder, group),
        decode=decode,
        shapes=shapes,
        packages=("autoawq",),
        method=(
            "awq.quantize.quantizer.AwqQuantizer._apply_quant (pseudo_quantize_tensor, "
            "WQLinear_GEMM.from_linear); decoded by awq.utils.packing_utils.dequantize_gemm"
        ),
    )


# The package cuts N / 32 before it multiplies by 4, so it writes no N but multiples of 32.
FORMATS = (
    _format("awq_g128", 128, {"mlp.up_proj": (64, 256), "mlp.down_proj": (32, 128)}),
    _format("awq_g32", 32, {"mlp.up_proj": (64, 128), "mlp.down_proj": (32, 96)}),
)
