"""What all exporters share: the description of a format, and folders for packages without a writer."""

import importlib.metadata
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

Tensors = Mapping[str, torch.Tensor]
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Format:
    """One weight format.

    Attributes:
      name: of its files.
      export: quantises the model in place and writes config.json and model.safetensors.
      decode: (module name, its stored tensors by local name, quantization_config) -> the matrix
        [N, K] in float64, by the package's own functions with scales widened to float64.
      shapes: [N, K] of the golden weights by module name under a layer.
      packages: distributions that wrote the tensors.
      method: the functions that were used, for versions.json.
    """

    name: str
    export: Callable[[PreTrainedModel, Path], None]
    decode: Callable[[str, Tensors, Record], torch.Tensor]
    shapes: Mapping[str, tuple[int, int]]
    packages: tuple[str, ...]
    method: str

    def versions(self) -> dict[str, str]:
        return {package: importlib.metadata.version(package) for package in self.packages}


def linears(model: PreTrainedModel, skip: Callable[[str], bool]) -> dict[str, torch.nn.Linear]:
    """The linear modules by full name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and not skip(name)
    }


def dense_recipe(name: str) -> bool:
    """The modules that the usual recipes leave alone: the head and the two narrow projections."""
    return name.endswith(("lm_head", "in_proj_a", "in_proj_b"))


def write_folder(
    model: PreTrainedModel, folder: Path, packed: Mapping[str, Tensors], record: Record
) -> None:
    """A checkpoint in which the weights of the modules in `packed` are replaced by these tensors."""
    tensors = dict(model.state_dict())
    for module, parts in packed.items():
        del tensors[f"{module}.weight"]
        tensors.update({f"{module}.{suffix}": tensor for suffix, tensor in parts.items()})
    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.dtype = model.dtype
    model.config.save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"quantization_config": dict(record)}
    path.write_text(json.dumps(config, indent=1, default=str) + "\n")
