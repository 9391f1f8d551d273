"""Decode, prefill and start-up of the embedded model on this CPU, beside PyTorch in the same run.

    python bench/bench_decode.py --peer-python PYTHON [--peer-checkpoint FOLDER] [--llama-jsonl FILE]

PYTHON is an interpreter with torch and transformers (see bench/peer_torch.py for its contract).
FILE holds llama.cpp's figures (see bench/peer_llama.py).
Without them the engine is measured alone. Prints a table and appends one JSON line per figure to
bench/results/cpu_decode.jsonl: median, min and max of five after one warm-up, with conditions.

Contract of the engine's figures, all through LLM.generate with a plain list of token ids:
  decode_batchB  B random prompts of 32 tokens, greedy, end marks ignored, no text. Tokens per second
                 of B * 127 tokens over the wall time of a call for 128 tokens less that of a call
                 for one token with the same prompts: scheduling, launches and copies count.
  prefill_N      N tokens over the wall time of a call for one token after a random prompt of N.
  context_LIMIT  decode_batch1 after a prompt of 192 tokens (so 256 in the middle), with
                 max_model_len LIMIT; the two limits take turns. Cost must follow the tokens in use,
                 not the limit.
  start_*        wall seconds of a process that makes one token: without a compile cache, with an
                 empty one, and with the one the start before left behind.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from peer_llama import read_figures
from record import REPEATS, Summary, append, conditions, repeated, timed

from onecat_jax import LLM, SamplingParams

HERE = Path(__file__).parent
FILE = "cpu_decode.jsonl"
PROMPT, NEW_TOKENS = 32, 128
BATCHES = (1, 8)
PREFILLS = (512, 1024)
LIMITS = (512, 8192)
LIMIT_PROMPT = 192
PLAIN_IDS = 8182  # ids below are no control tokens
MODEL = Path("onecat_jax") / "assets" / "tiny" / "target"


@dataclass(frozen=True)
class Figure:
    """One measured figure and its unit."""

    name: str
    summary: Summary
    unit: str


def prompts(batch: int, length: int, seed: int) -> list[dict[str, list[int]]]:
    """Random token prompts; a new seed makes sure that nothing is reused."""
    ids = np.random.default_rng(seed).integers(0, PLAIN_IDS, (batch, length))
    return [{"prompt_token_ids": row.tolist()} for row in ids]


def seconds(llm: LLM, batch: int, length: int, new_tokens: int, seed: int) -> float:
    """Wall seconds of one call."""
    params = SamplingParams(
        temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False
    )
    inputs = prompts(batch, length, seed)
    return timed(lambda: llm.generate(inputs, params))


def decode_rate(llm: LLM, batch: int, length: int, seed: int) -> float:
    whole = seconds(llm, batch, length, NEW_TOKENS, seed)
    return batch * (NEW_TOKENS - 1) / (whole - seconds(llm, batch, length, 1, seed))


def prefill_rate(llm: LLM, length: int, seed: int) -> float:
    return length / seconds(llm, 1, length, 1, seed)


def throughput() -> list[Figure]:
    llm = LLM(model="tiny", max_model_len=2048, max_num_seqs=max(BATCHES))
    rates: dict[str, Callable[[int], float]] = {}
    for batch in BATCHES:
        rates[f"decode_batch{batch}"] = lambda seed, b=batch: decode_rate(llm, b, PROMPT, seed)
    for length in PREFILLS:
        rates[f"prefill_{length}"] = lambda seed, n=length: prefill_rate(llm, n, seed)
    return [Figure(name, repeated(rate), "tokens/s") for name, rate in rates.items()]


def limits() -> list[Figure]:
    """The same decode under a small and a large max_model_len, in turns."""
    engines = {limit: LLM(model="tiny", max_model_len=limit, max_num_seqs=1) for limit in LIMITS}
    rates: dict[int, list[float]] = {limit: [] for limit in LIMITS}
    for seed in range(REPEATS + 1):
        for limit, llm in engines.items():
            rates[limit].append(decode_rate(llm, 1, LIMIT_PROMPT, seed))
    return [
        Figure(f"context_{limit}", Summary.of(values[1:]), "tokens/s")
        for limit, values in rates.items()
    ]


def start_seconds(cache: Path | None) -> float:
    """Wall seconds of `onecat generate` for one token in a new process."""
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    if cache is not None:
        environment |= {
            "JAX_ENABLE_COMPILATION_CACHE": "true",
            "JAX_COMPILATION_CACHE_DIR": str(cache),
        }
    command = [Path(sys.executable).parent / "onecat", "generate", "--max-tokens", "1", "Hello"]
    return timed(lambda: subprocess.run(command, env=environment, check=True, capture_output=True))


def starts() -> list[Figure]:
    found: dict[str, list[float]] = {"start_no_cache": [], "start_first": [], "start_later": []}
    for _ in range(REPEATS):
        found["start_no_cache"].append(start_seconds(None))
        with tempfile.TemporaryDirectory() as folder:
            found["start_first"].append(start_seconds(Path(folder)))
            found["start_later"].append(start_seconds(Path(folder)))
    return [Figure(name, Summary.of(values), "s") for name, values in found.items()]


def peer(python: Path, checkpoint: Path) -> dict[str, Any]:
    """The peer's report (bench/peer_torch.py)."""
    threads = sorted({1, len(os.sched_getaffinity(0))})
    command = [python, HERE / "peer_torch.py", checkpoint, "--threads", *map(str, threads)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(done.stdout)


def record_engine(figures: list[Figure], where: dict[str, Any]) -> None:
    for figure in figures:
        append(
            FILE, figure.name, figure.summary, side="onecat-jax", unit=figure.unit, conditions=where
        )
        print(f"{figure.name:16} {figure.unit:9} {figure.summary}", flush=True)


def record_peer(report: dict[str, Any]) -> dict[str, float]:
    """Appends the peer's best figures; their medians by name."""
    for name, best in report["best"].items():
        summary = Summary(best["median"], best["min"], best["max"], best["repeats"])
        append(
            FILE, name, summary, side=report["peer"], unit=report["unit"], dtype=best["dtype"],
            threads=best["threads"], conditions=report["conditions"],
        )  # fmt: skip
        print(
            f"{name:16} {report['unit']:9} {summary}  {report['peer']} {best['dtype']}, "
            f"{best['threads']} threads"
        )
    return {name: best["median"] for name, best in report["best"].items()}


def print_ratios(figures: list[Figure], peer_medians: dict[str, float]) -> None:
    ours = {figure.name: figure.summary.median for figure in figures}
    for name in sorted(ours.keys() & peer_medians.keys()):
        print(f"{name:16} {ours[name] / peer_medians[name]:.2f} times the peer")
    small, large = (ours[f"context_{limit}"] for limit in LIMITS)
    print(f"decode with max_model_len {LIMITS[1]} over {LIMITS[0]}: {large / small:.3f}")


def print_llama(figures: list[Figure], llama: dict[str, float]) -> None:
    ours = {figure.name: figure.summary.median for figure in figures}
    for name, rate in sorted(llama.items()):
        ratio = f"{ours[name] / rate:.2f} times llama.cpp" if name in ours else "not measured here"
        print(f"{name:16} tokens/s  {rate:.4g}  llama.cpp: {ratio}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", type=Path)
    parser.add_argument("--peer-checkpoint", type=Path, default=HERE.parent / MODEL)
    parser.add_argument("--llama-jsonl", type=Path)
    parser.add_argument("--skip-starts", action="store_true")
    args = parser.parse_args()
    where = conditions(("onecat-jax", "jax", "jaxlib", "numpy"))
    figures = throughput() + limits() + ([] if args.skip_starts else starts())
    record_engine(figures, where)
    medians = {}
    if args.peer_python:
        medians = record_peer(peer(args.peer_python, args.peer_checkpoint))
    print_ratios(figures, medians)
    if args.llama_jsonl:
        print_llama(figures, read_figures(args.llama_jsonl))


if __name__ == "__main__":
    main()
