"""Figures of llama.cpp, read from what its own bench tool wrote.

    llama-bench -m MODEL.gguf -t 2 -p 512,1024 -n 128 -o jsonl > llama.jsonl
    python bench/bench_decode.py --llama-jsonl llama.jsonl

llama-bench times prompts (n_prompt tokens, n_gen 0) and generation (n_prompt 0, n_gen tokens, one sequence) apart; `avg_ts` is
tokens per second.
"""

import json
from pathlib import Path

_GENERATED = 128


def read_figures(path: Path) -> dict[str, float]:
    """Tokens per second under this bench's names: prefill_N and decode_batch1.

    Raises:
      ValueError: a line isn't llama-bench's; the message has its number.
    """
    figures = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            name, rate = _figure(path, number, line)
            figures[name] = rate
    return figures


def _figure(path: Path, number: int, line: str) -> tuple[str, float]:
    try:
        row = json.loads(line)
        prompt, generated, rate = int(row["n_prompt"]), int(row["n_gen"]), float(row["avg_ts"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}, line {number}: n_prompt, n_gen and avg_ts of `llama-bench -o jsonl` are needed ({error!r})"
        ) from error
    if generated == 0:
        return f"prefill_{prompt}", rate
    if prompt == 0 and generated == _GENERATED:
        return "decode_batch1", rate
    raise ValueError(
        f"{path}, line {number}: n_prompt {prompt} with n_gen {generated}; prompts alone or -n {_GENERATED} alone are needed"
    )
