"""Makes four-layer checkpoints of the weight formats by the formats' own packages, with logits.

    python tests/oracle/make_format_checkpoints.py [--out FOLDER] [NAME ...]

Without --out the committed ones are made anew: tests/golden/formats/checkpoints/NAME holds a folder
as the package writes it and logits.npz. With --out any format that the installed packages write can
be made. Needs what make_format_goldens.py needs.

The logits are those of the PyTorch model in float32 with every quantised matrix replaced by what its
package decodes: activations aren't quantised and the cache isn't FP8, whatever the record says.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from exporters import Format
from exporters.registry import FORMATS
from make_format_goldens import GOLDEN, environment
from safetensors.torch import load_file
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

sys.path.insert(0, str(Path(__file__).parents[1]))

import oracle_weights as ow
from format_checkpoints import CASE

COMMITTED = ("modelopt_mixed", "compressed_mixed", "awq_g32", "quark_int4_order_g32")
# What the packages leave in a folder beside what a checkpoint needs.
KEPT = ("config.json", "hf_quant_config.json", "model.safetensors")


def build(dtype: torch.dtype) -> Qwen3_5ForCausalLM:
    """The original model; its weights are exact in BF16."""
    config = Qwen3_5TextConfig(**CASE.config)
    config._attn_implementation = "eager"
    model = Qwen3_5ForCausalLM(config).eval()
    state = {name: torch.from_numpy(w).bfloat16() for name, w in ow.weights(CASE).items()}
    model.load_state_dict(state, strict=True)
    return model.to(dtype)


def decoded(form: Format, folder: Path) -> dict[str, torch.Tensor]:
    """The model's float32 parameters as the folder holds them."""
    tensors = load_file(folder / "model.safetensors")
    record = json.loads((folder / "config.json").read_text())["quantization_config"]
    # ModelOpt gives the decoder the place it has in the multimodal releases.
    inner = any(name.startswith("model.language_model.") for name in tensors)
    parameters = {}
    for name in build(torch.float32).state_dict():
        stored = name.replace("model.", "model.language_model.", 1) if inner else name
        module = stored.removesuffix(".weight")
        parts = {
            key.rpartition(".")[2]: tensor
            for key, tensor in tensors.items()
            if key.rpartition(".")[0] == module and not key.endswith((".k_scale", ".v_scale"))
        }
        if len(parts) > 1:
            parameters[name] = form.decode(module, parts, record).detach().float()
        else:
            parameters[name] = tensors[stored].float()
    return parameters


@torch.no_grad()
def logits_of(parameters: dict[str, torch.Tensor]) -> np.ndarray:
    """float32 [T, V] of the case's tokens."""
    model = build(torch.float32)
    model.load_state_dict(parameters, strict=True)
    ids = torch.from_numpy(ow.token_ids(CASE)).long()
    return model(input_ids=ids[None], use_cache=False).logits[0].numpy()


def make(form: Format, target: Path) -> None:
    """Writes the folder, the logits and who made them."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    form.export(build(torch.bfloat16), target)
    for path in target.iterdir():
        if path.name not in KEPT:
            path.unlink()
    original = logits_of({k: v.float() for k, v in build(torch.bfloat16).state_dict().items()})
    logits = logits_of(decoded(form, target))
    np.savez_compressed(target / "logits.npz", ids=ow.token_ids(CASE), logits=logits)
    error = float(np.std(logits - original) / np.std(original))
    made = environment() | {"packages": form.versions(), "method": form.method}
    made |= {"command": "python tests/oracle/make_format_checkpoints.py"}
    made |= {"distance_to_original": round(error, 4)}
    (target / "made_with.json").write_text(json.dumps(made, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=GOLDEN / "checkpoints")
    parser.add_argument("names", nargs="*", default=COMMITTED)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.names:
        make(FORMATS[name], args.out / name)
        print(name, sum(path.stat().st_size for path in (args.out / name).iterdir()), "bytes")


if __name__ == "__main__":
    main()
