"""`onecat bench`: how fast the kernels are on this GPU."""

import argparse
import json
from pathlib import Path

_EXAMPLES = """examples:
  onecat bench kernels
  onecat bench kernels --only "nvfp4 27b tp1" --rows 1,8,16
  onecat bench kernels --out bench/results/kernels.jsonl

Needs an NVIDIA GPU. Times are the device's own clock around a program of many launches.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Gives the parser of `bench` its texts and options."""
    parser.description = "Times every linear kernel against a copy and the library's product."
    parser.epilog = _EXAMPLES
    parser.add_argument("what", choices=["kernels"], help="what to measure")
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="only lines whose name has all these words"
    )
    parser.add_argument("--rows", default="1,8,16", help="rows of activations (default 1,8,16)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append JSON lines to this file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints one line per measurement.

    Raises:
      EngineError: no NVIDIA GPU, or rows that aren't numbers.
    """
    from onecat_jax.cli.bench_kernels import measurements, parse_rows  # imports JAX

    for line in measurements(args.only.split(), parse_rows(args.rows)):
        print(_text(line), flush=True)
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            with args.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    return 0


def _text(line: dict[str, object]) -> str:
    return (
        f"{line['name']:<44} {line['median_us']:>9} us  {line['tb_per_s']:>6} TB/s  {line['of_copy']:>4.0%} of copy"
        if "of_copy" in line
        else f"{line['name']:<44} {line['median_us']:>9} us  {line['rate']}"
    )
