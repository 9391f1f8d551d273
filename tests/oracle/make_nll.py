"""Makes tests/golden/nll_text.json: what PyTorch thinks of three short documents.

    python tests/oracle/make_nll.py --bf16 FOLDER [--nvfp4 FOLDER] [--heldout FILE]

FOLDER is a checkpoint of the embedded tiny model: its bf16 original and its NVFP4 copy (default:
the embedded one). With --heldout nothing is written: the first documents of that JSON Lines file
are measured and compared with the figures it holds, which checks that the contract is the same.

Contract: ids = [id of <|endoftext|>] + encode(text) without added special tokens, cut to 2048;
the figure is the sum over ids[1:] of -ln p(id | all before it), in nats, float32 arithmetic.
"""

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import Tokenizer
from torch_checkpoint import load_model

ROOT = Path(__file__).parents[2]
EMBEDDED = ROOT / "onecat_jax" / "assets" / "tiny" / "target"
TEXTS = ("module", "readme", "chat")
LIMIT = 2048


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    start = tokenizer.token_to_id("<|endoftext|>")
    return [start, *tokenizer.encode(text, add_special_tokens=False).ids][:LIMIT]


@torch.no_grad()
def summed_nll(model: torch.nn.Module, ids: list[int]) -> float:
    """Sum of -ln p of ids[1:], in nats."""
    tokens = torch.tensor([ids])
    logprobs = model(input_ids=tokens, use_cache=False).logits[0, :-1].log_softmax(-1)
    return -float(logprobs.gather(1, tokens[0, 1:, None]).double().sum())


def measure(
    tokenizer: Tokenizer, models: dict[str, torch.nn.Module], text: str
) -> dict[str, int | float]:
    ids = encode(tokenizer, text)
    nlls = {f"nll_{name}": round(summed_nll(model, ids), 4) for name, model in models.items()}
    return {"tokens": len(ids) - 1} | nlls


def write_goldens(tokenizer: Tokenizer, models: dict[str, torch.nn.Module]) -> None:
    documents: list[dict[str, Any]] = []
    for name in TEXTS:
        text = (Path(__file__).parent / "texts" / f"{name}.txt").read_text(encoding="utf-8")
        documents.append({"name": name, "text": text} | measure(tokenizer, models, text))
        print(name, {k: v for k, v in documents[-1].items() if k != "text"})
    made = {
        "command": "python tests/oracle/make_nll.py --bf16 FOLDER",
        "contract": "ids = [<|endoftext|>] + encode(text); sum of -ln p of ids[1:], nats, float32",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "documents": documents,
    }
    target = ROOT / "tests" / "golden" / "nll_text.json"
    target.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def compare(
    tokenizer: Tokenizer, models: dict[str, torch.nn.Module], heldout: Path, count: int
) -> None:
    lines = heldout.read_text(encoding="utf-8").splitlines()
    chosen = lines[:count] + lines[-count:]
    for record in map(json.loads, chosen):
        found = measure(tokenizer, models, record["text"])
        stored = {key: record[key] for key in found}
        print(record["id"], record["kind"], "found", found, "stored", stored)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bf16", type=Path, required=True)
    parser.add_argument("--nvfp4", type=Path, default=EMBEDDED)
    parser.add_argument("--heldout", type=Path)
    parser.add_argument("--count", type=int, default=1, help="documents from each end of the file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    models = {"bf16": load_model(args.bf16), "nvfp4": load_model(args.nvfp4)}
    if args.heldout:
        compare(tokenizer, models, args.heldout, args.count)
    else:
        write_goldens(tokenizer, models)


if __name__ == "__main__":
    main()
