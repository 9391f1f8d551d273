"""`onecat bench`: how fast the kernels are on this GPU, and what bounds them on a V100."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_EXAMPLES = """examples:
  onecat bench kernels
  onecat bench kernels --only "nvfp4 27b tp1" --rows 1,8,16
  onecat bench kernels --out bench/results/kernels.jsonl
  onecat bench sm70

kernels: needs an NVIDIA GPU; times are the device's own clock around a program of many launches. sm70: needs none; reads the
embedded images.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Gives the parser of `bench` its texts and options."""
    parser.description = "Times the linear kernels, or models those for a V100."
    parser.epilog = _EXAMPLES
    parser.add_argument("what", choices=["kernels", "sm70"], help="what to measure")
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
    for line in _sm70(args) if args.what == "sm70" else _kernels(args):
        print(_text(line), flush=True)
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            with args.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    return 0


def _kernels(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from onecat_jax.cli.bench_kernels import measurements, parse_rows  # imports JAX

    return measurements(args.only.split(), parse_rows(args.rows))


def _sm70(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from onecat_jax.cli.bench_sm70 import as_line, reports

    for report in reports():
        if all(word in report.name for word in args.only.split()):
            yield as_line(report)


def _text(line: dict[str, Any]) -> str:
    if "registers" in line:
        needs = f"{line['registers']:>4} registers  {line['stack_bytes']:>3} spilled  {line['shared_bytes']:>6} shared"
        loop = f"{line['instructions']:>5}: {line['products']:>4} m8n8k4, {line['loads_128']:>4} loads of 16 bytes"
        bounds = f"issue {line['issue_bound'] / 1e12:.2f}, tensor {line['product_bound'] / 1e12:.2f} TB/s"
        blocks = f"{line['blocks_per_multiprocessor']:>2} blocks"
        return f"{line['name']:<28} {needs}  {blocks}  loop of {loop}  {bounds} = {line['of_memory']:.1f} x memory"
    if "of_copy" in line:
        speed = f"{line['tb_per_s']:>6} TB/s  {line['of_copy']:>4.0%} of copy"
        return f"{line['name']:<44} {line['median_us']:>9} us  {speed}"
    return f"{line['name']:<44} {line['median_us']:>9} us  {line['rate']}"
