"""What the PyTorch implementation (transformers) does on the same checkpoint, as JSON on stdout.

    python bench/peer_torch.py FOLDER [--threads 1 2]

Contract: greedy, KV and recurrent state cached, SDPA attention, random prompts, one warm-up and the
median of five. decode = tokens per second over all rows of NEW_TOKENS - 1 cached steps after a
prompt of PROMPT tokens, without the prefill. prefill = prompt tokens per second of one forward that
fills the cache and computes the last position's logits. Every figure in float32 and in bfloat16,
with each number of threads; `best` holds the fastest. NVFP4 weights are expanded before the start.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from record import Summary, conditions, repeated, timed
from transformers import DynamicCache

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "oracle"))

from torch_checkpoint import load_model

PROMPT, NEW_TOKENS = 32, 128
BATCHES = (1, 8)
PREFILLS = (512, 1024)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def random_prompt(model: torch.nn.Module, batch: int, length: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, model.config.vocab_size - 16, (batch, length), generator=generator)


def prefill(model: torch.nn.Module, ids: torch.Tensor) -> tuple[torch.Tensor, DynamicCache]:
    """Greedy next tokens [B, 1] and the filled cache."""
    cache = DynamicCache(config=model.config)
    logits = model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1).logits
    return logits.argmax(-1), cache


def decode_rate(model: torch.nn.Module, batch: int, seed: int) -> float:
    token, cache = prefill(model, random_prompt(model, batch, PROMPT, seed))

    def steps() -> None:
        nonlocal token
        for _ in range(NEW_TOKENS - 1):
            token = model(input_ids=token, cache=cache, use_cache=True).logits.argmax(-1)

    return batch * (NEW_TOKENS - 1) / timed(steps)


def prefill_rate(model: torch.nn.Module, length: int, seed: int) -> float:
    ids = random_prompt(model, 1, length, seed)
    return length / timed(lambda: prefill(model, ids))


@torch.inference_mode()
def measure(folder: Path, dtype: str) -> dict[str, Summary]:
    """Tokens per second, by the name of the figure."""
    model = load_model(folder, DTYPES[dtype], attention="sdpa")
    figures = {}
    for batch in BATCHES:
        figures[f"decode_batch{batch}"] = repeated(lambda i, b=batch: decode_rate(model, b, i))
    for length in PREFILLS:
        figures[f"prefill_{length}"] = repeated(lambda i, n=length: prefill_rate(model, n, i))
    return figures


def measure_all(folder: Path, threads: list[int]) -> list[dict[str, Any]]:
    """One entry per figure, dtype and number of threads."""
    found = []
    for count in threads:
        torch.set_num_threads(count)
        for dtype in DTYPES:
            for figure, summary in measure(folder, dtype).items():
                setting = {"figure": figure, "dtype": dtype, "threads": count}
                found.append(setting | asdict(summary))
    return found


def report(folder: Path, threads: list[int]) -> dict[str, Any]:
    before = conditions(("torch", "transformers"))
    found = measure_all(folder, threads)
    best: dict[str, dict[str, Any]] = {}
    for entry in sorted(found, key=lambda e: e["median"]):
        best[entry["figure"]] = entry
    return {
        "peer": "transformers",
        "unit": "tokens/s",
        "conditions": before,
        "load_1min_after": conditions(())["load_1min"],
        "figures": found,
        "best": best,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()
    print(json.dumps(report(args.folder, args.threads)))


if __name__ == "__main__":
    main()
