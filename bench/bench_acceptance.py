"""Acceptance length of drafts on a file of prompts, by the contract of the embedded model's card.

    python bench/bench_acceptance.py --prompts FILE [--model tiny] [--speculative-config JSON] [--temperature 0] [--seeds 1]
                                     [--kinds code,chat] [--rows 8] [--tokens 128] [--reference] [--out FILE]

FILE holds one JSON object per line with `token_ids` and `kind`; with `reference_T0` (tokens and accepted drafts per round, by
somebody else) --reference compares round by round.

Contract: the first token comes without drafts and isn't counted; then rounds until they make --tokens tokens, end marks
ignored, the last round in full. Request mean: mean over prompts (and seeds) of the mean tokens per round; pooled: all tokens
over all rounds. No request rests (min_acceptance_length 0). bench/copies.jsonl holds prompts of kind copy, which the embedded
model goes on repeating word by word.
"""

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from conditions import ROOT, Conditions, append

from onecat_jax import LLM, SamplingParams

SPARE = 32  # a launch may run beyond what is counted
LONGEST = 1024


@dataclass(frozen=True)
class Measured:
    """Rounds of one request."""

    tokens: tuple[int, ...]
    accepted: tuple[int, ...]  # drafts, per round


def counted(accepted: list[int], wanted: int) -> tuple[int, ...]:
    """The rounds up to the one that completes the wanted tokens."""
    emitted = np.cumsum([a + 1 for a in accepted])
    return tuple(accepted[: int(np.argmax(emitted >= wanted)) + 1])


def run(llm: LLM, prompts: list[list[int]], params: SamplingParams, wanted: int) -> list[Measured]:
    """First tokens without drafts, then everything else from there."""
    alone = replace(params, max_tokens=1, extra_args={"num_speculative_tokens": 0})
    firsts = llm.generate([{"prompt_token_ids": ids} for ids in prompts], alone)
    longer = [[*ids, *out.outputs[0].token_ids] for ids, out in zip(prompts, firsts, strict=True)]
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in longer], params)
    found = []
    for first, output in zip(firsts, outputs, strict=True):
        rounds = list(output.metrics.accepted_per_round)
        tokens = (*first.outputs[0].token_ids, *output.outputs[0].token_ids)
        found.append(Measured(tokens, counted(rounds, wanted)))
    return found


def figures(measured: list[Measured], drafts: int) -> dict[str, Any]:
    """Request mean, pooled mean, and the share of rounds with at least 1, 2, ... accepted drafts."""
    lengths = [np.mean(m.accepted) + 1 for m in measured]
    every = np.concatenate([m.accepted for m in measured])
    return {
        "requests": len(measured),
        "rounds": len(every),
        "request_mean": round(float(np.mean(lengths)), 4),
        "standard_error": round(float(np.std(lengths) / len(lengths) ** 0.5), 4),
        "pooled": round(float(every.mean()) + 1, 4),
        "at_least": [round(float((every > place).mean()), 3) for place in range(drafts)],
    }


def compare(measured: list[Measured], rows: list[dict[str, Any]], wanted: int) -> dict[str, int]:
    """How many prompts have the reference's rounds and tokens."""
    same = {"prompts": 0, "same_rounds": 0, "same_tokens": 0}
    for found, row in zip(measured, rows, strict=True):
        reference = row.get("reference_T0")
        if reference is None:
            continue
        length = min(wanted, len(reference["tokens"]))
        same["prompts"] += 1
        same["same_rounds"] += list(found.accepted) == reference["accepted_per_round"]
        same["same_tokens"] += list(found.tokens[:length]) == reference["tokens"][:length]
    return same


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--speculative-config", default='{"method": "dflash"}')
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--kinds", default="code,chat")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/cpu_acceptance.jsonl")
    args = parser.parse_args()
    kinds = args.kinds.split(",")
    rows = [json.loads(line) for line in args.prompts.read_text().splitlines()]
    rows = [row for row in rows if row["kind"] in kinds]
    speculative = json.loads(args.speculative_config) | {"min_acceptance_length": 0.0}
    llm = LLM(
        model=args.model,
        max_model_len=LONGEST,
        max_num_seqs=args.rows,
        speculative_config=speculative,
    )
    measured: list[Measured] = []
    for seed in range(args.seeds):
        params = SamplingParams(
            temperature=args.temperature,
            max_tokens=args.tokens + SPARE,
            ignore_eos=True,
            detokenize=False,
            seed=seed,
        )
        measured += run(llm, [row["token_ids"] for row in rows], params, args.tokens)
    row = {
        "bench": "acceptance",
        "model": Path(args.model).name,
        "speculative_config": speculative,
        "temperature": args.temperature,
        "seeds": args.seeds,
        "kinds": args.kinds,
        "tokens": args.tokens,
        **figures(measured, len(llm.stats()["speculation"]["acceptance_per_position"])),
    }
    if args.reference:
        row["reference"] = compare(measured[: len(rows)], rows, args.tokens)
    print(json.dumps(row))
    append(args.out, Conditions("bench/bench_acceptance.py"), row)


if __name__ == "__main__":
    main()
