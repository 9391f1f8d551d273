"""Speculative decoding of the embedded model on this CPU beside target-only decoding in the same process.

    python bench/bench_speculation.py [--repeats N] [--new-tokens N]

Prints a table and appends one JSON line per figure to bench/results/cpu_speculation.jsonl, with conditions.

Contract, all through LLM.generate, batch 1, greedy, end marks ignored, no text: both engines are warmed up on every prompt,
then take turns on each of the code prompts; which one goes first changes from repeat to repeat. Prefill doesn't count. Decode
seconds begin when the first round ends, so a request's rate is its tokens per round, all rounds counted, times the rounds per
second after the first one: the tokens of a first round with drafts aren't given away for nothing.
  target_only, dflash  tokens per second: median over all requests.
  ratio                dflash over target_only: median over the pairs of neighbouring requests.
  acceptance           tokens per round, the extra one included, over all requests.
  round_ms             decode milliseconds per round: median over requests.
Both must give the same tokens, or nothing is recorded.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from record import Summary, append, conditions

from onecat_jax import LLM, SamplingParams

FILE = "cpu_speculation.jsonl"
PACKAGES = ("jax", "jaxlib", "numpy", "onecat-jax")
PROMPTS = (
    'def read_config(path):\n    """Returns the settings in a JSON file."""\n    ',
    "import numpy as np\n\n\ndef moving_average(values, width):\n    ",
    "class Queue:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "def count_words(text: str) -> dict[str, int]:\n    counts = {}\n    for word in text.split():\n",
    "import argparse\n\n\ndef main():\n    parser = argparse.ArgumentParser()\n    parser.add_argument(",
    "def test_sorted_list_stays_sorted():\n    values = [3, 1, 2]\n    assert ",
    "@dataclass\nclass Point:\n    x: float\n    y: float\n\n    def distance(self, other):\n",
    "for name in os.listdir(folder):\n    path = os.path.join(folder, name)\n    if ",
)


@dataclass(frozen=True)
class Run:
    """One request."""

    tokens: tuple[int, ...]
    seconds: float  # from the end of the first round to that of the last
    rounds: int

    @property
    def round_seconds(self) -> float:
        return self.seconds / (self.rounds - 1)

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return len(self.tokens) / self.rounds / self.round_seconds


@dataclass(frozen=True)
class Pair:
    """The same prompt on both engines, one right after the other."""

    plain: Run
    drafts: Run

    @property
    def ratio(self) -> float:
        return self.drafts.rate / self.plain.rate


def engine(speculation: dict[str, str] | None) -> LLM:
    return LLM("tiny", max_model_len=512, max_num_seqs=1, speculative_config=speculation)


def request(llm: LLM, prompt: str, new_tokens: int) -> Run:
    params = SamplingParams(
        temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False
    )
    output = llm.generate(prompt, params)[0]
    metrics = output.metrics
    return Run(tuple(output.outputs[0].token_ids), metrics.decode_seconds, metrics.rounds)


def pair(plain: LLM, drafts: LLM, prompt: str, new_tokens: int, turn: int) -> Pair:
    order = (plain, drafts) if turn % 2 == 0 else (drafts, plain)
    runs = {id(llm): request(llm, prompt, new_tokens) for llm in order}
    found = Pair(runs[id(plain)], runs[id(drafts)])
    if found.plain.tokens != found.drafts.tokens:
        raise SystemExit(f"drafts changed the tokens after {prompt!r}")
    return found


def measure(repeats: int, new_tokens: int) -> list[Pair]:
    plain, drafts = engine(None), engine({"method": "dflash"})
    for prompt in PROMPTS:
        pair(plain, drafts, prompt, new_tokens, 0)
    turns = [(turn, prompt) for turn in range(repeats) for prompt in PROMPTS]
    return [pair(plain, drafts, prompt, new_tokens, turn) for turn, prompt in turns]


def figures(pairs: Sequence[Pair]) -> dict[str, tuple[Summary, str]]:
    """Name -> summary and unit."""
    drafts = [p.drafts for p in pairs]
    accepted = sum(len(r.tokens) for r in drafts) / sum(r.rounds for r in drafts)
    return {
        "target_only": (Summary.of([p.plain.rate for p in pairs]), "tok/s"),
        "dflash": (Summary.of([r.rate for r in drafts]), "tok/s"),
        "ratio": (Summary.of([p.ratio for p in pairs]), "x"),
        "acceptance": (Summary.of([accepted]), "tok/round"),
        "round_ms": (Summary.of([1000 * r.round_seconds for r in drafts]), "ms"),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=128)
    args = parser.parse_args()
    where = conditions(PACKAGES)
    setting = {"prompts": len(PROMPTS), "new_tokens": args.new_tokens, "model": "tiny", "batch": 1}
    for name, (summary, unit) in figures(measure(args.repeats, args.new_tokens)).items():
        print(f"{name:<12} {summary} {unit}")
        append(FILE, name, summary, unit=unit, **setting, **where)


if __name__ == "__main__":
    main()
