"""Makes tests/golden/formats: a few weights per format, written and decoded by public packages.

    python tests/oracle/make_format_goldens.py [NAME ...]

Needs torch, transformers and the packages of oracle/exporters: compressed-tensors, nvidia-modelopt,
autoawq and amd-quark. compressed_int4_order* need compressed-tensors 0.12 in place of a current one
and are made only where that is installed. The tests read the files and need none of it.

Per format NAME.safetensors holds the tensors of a one-layer model as its checkpoint has them,
NAME.json the records that config.json and hf_quant_config.json carry, and NAME.npz the decoded
matrices [N, K] by module, float64 of the package rounded to float32. versions.json tells who wrote
what. The first weight of a format is regular, the others are odd but legal.
"""

import importlib.metadata
import json
import platform
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch
import transformers
from exporters import Format
from exporters.registry import FORMATS
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

GOLDEN = Path(__file__).parents[1] / "golden" / "formats"
NOTES = (
    "Every format has a public package; nothing was packed by other means.",
    "fp8_block: the package of the format leaves sizes alone that are no multiple of 128; those were "
    "rounded by compressed-tensors and only the name of the scale was changed.",
    "awq: AutoAWQ packs only N that are multiples of 32.",
    "compressed_int4_order*: releases of compressed-tensors since 2026 no longer write weight_g_idx; the "
    "order of the columns was drawn, not calibrated.",
)
LAYER = "model.layers.0."


class LinearsConfig(PreTrainedConfig):
    """Shapes [N, K] by module name under the layer."""

    model_type = "linears"

    def __init__(self, shapes: dict[str, tuple[int, int]] | None = None, **kwargs):
        self.shapes = shapes or {}
        super().__init__(**kwargs)
        self.architectures = ["LinearsForCausalLM"]


class Linears(PreTrainedModel):
    """A model that holds linears under the names of a decoder layer and runs each by itself."""

    config_class = LinearsConfig
    base_model_prefix = "model"

    def __init__(self, config: LinearsConfig):
        super().__init__(config)
        self.model = nn.Module()
        layer = nn.Module()
        for name, (n, k) in config.shapes.items():
            parent, leaf = name.split(".")
            if not hasattr(layer, parent):
                setattr(layer, parent, nn.Module())
            setattr(getattr(layer, parent), leaf, nn.Linear(k, n, bias=False))
        self.model.layers = nn.ModuleList([layer])
        self.model.norm = nn.RMSNorm(8)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Weights are drawn by `draw`."""

    def forward(self, input_ids: torch.Tensor | None = None, **kwargs) -> torch.Tensor:
        total = torch.zeros((), dtype=self.dtype)
        for module in self.model.layers.modules():
            if isinstance(module, nn.Linear):
                steps = torch.linspace(-2, 2, module.in_features, dtype=self.dtype)
                total = total + module(steps[None]).sum()
        return total


def draw(name: str, shape: tuple[int, int]) -> torch.Tensor:
    """BF16 values [N, K]: normal, rows of unlike sizes, some far out, some zero, off centre."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    values = rng.standard_normal(shape) * shape[1] ** -0.5
    values *= np.exp(rng.normal(0, 0.7, (shape[0], 1)))
    values *= np.where(rng.random(shape) < 0.002, 12.0, 1.0)
    values += np.where(rng.random((shape[0], 1)) < 0.3, 1.0, 0.0) * shape[1] ** -0.5
    values[rng.random(shape) < 0.01] = 0
    return torch.from_numpy(values).bfloat16()


def build(form: Format) -> Linears:
    model = Linears(LinearsConfig({name: list(s) for name, s in form.shapes.items()}))
    model = model.bfloat16().eval()
    for name, shape in form.shapes.items():
        module = model.get_submodule(LAYER + name)
        module.weight.data.copy_(draw(f"{form.name} {name}", shape))
    return model


def records_of(folder: Path) -> dict[str, dict]:
    """The quantisation records of a checkpoint folder by file."""
    config = json.loads((folder / "config.json").read_text())
    records = {"config.json": config["quantization_config"]}
    extra = folder / "hf_quant_config.json"
    if extra.exists():
        records["hf_quant_config.json"] = json.loads(extra.read_text())
    return records


def decoded(form: Format, tensors: dict[str, torch.Tensor], record: dict) -> dict[str, np.ndarray]:
    """float32 matrices [N, K] by full module name."""
    matrices = {}
    for name, shape in form.shapes.items():
        module = LAYER + name
        parts = {
            key.removeprefix(f"{module}."): tensor
            for key, tensor in tensors.items()
            if key.startswith(f"{module}.")
        }
        matrix = form.decode(module, parts, record).detach()
        if tuple(matrix.shape) != shape:
            raise ValueError(f"{form.name}: {module} decodes to {tuple(matrix.shape)}, not {shape}")
        matrices[module] = matrix.double().numpy().astype(np.float32)
    return matrices


def make(form: Format) -> dict:
    """Writes the files of a format and returns its entry of versions.json."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        form.export(build(form), folder)
        tensors, records = load_file(folder / "model.safetensors"), records_of(folder)
    tensors = {name: t for name, t in tensors.items() if not name.endswith("norm.weight")}
    matrices = decoded(form, tensors, records["config.json"])
    GOLDEN.mkdir(parents=True, exist_ok=True)
    save_file(tensors, GOLDEN / f"{form.name}.safetensors", metadata={"format": "pt"})
    np.savez_compressed(GOLDEN / f"{form.name}.npz", **matrices)
    text = json.dumps(records, indent=1, sort_keys=True)
    (GOLDEN / f"{form.name}.json").write_text(text + "\n")
    return {"packages": form.versions(), "method": form.method}


def environment() -> dict[str, str]:
    return {
        "command": "python tests/oracle/make_format_goldens.py",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "safetensors": importlib.metadata.version("safetensors"),
        "decoded": "by each package's own functions in float64, rounded to float32",
    }


def main() -> None:
    torch.set_num_threads(1)
    path = GOLDEN / "versions.json"
    entries = json.loads(path.read_text())["formats"] if path.exists() else {}
    for name in sys.argv[1:] or list(FORMATS):
        entries[name] = make(FORMATS[name])
        print(name, entries[name]["packages"])
    ordered = {name: entries[name] for name in sorted(entries)}
    path.write_text(
        json.dumps(environment() | {"notes": NOTES, "formats": ordered}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
