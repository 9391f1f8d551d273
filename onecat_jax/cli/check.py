"""`onecat check`: whether this installation, and a checkpoint if one is named, will work."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from onecat_jax.cli.options import MODEL_HELP

if TYPE_CHECKING:
    from onecat_jax.cli.environment import Row

_EXAMPLES = """examples:
  onecat check
  onecat check ./Qwen3.8-27B-NVFP4
  onecat check tiny --json
  onecat check --self-test --json > report.json

exit code: 0 all well or warnings only, 1 something fails, 2 the model can't be opened
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Gives the parser of `check` its texts and options."""
    parser.description = (
        "Checks versions, devices, the extension, routes; with MODEL every tensor too."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument("model", nargs="?", help=MODEL_HELP)
    parser.add_argument(
        "--self-test",
        action="store_true",
        help="every kernel of linears and attention against float64, on the device",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the findings.

    Returns:
      0, or 1 if something fails.

    Raises:
      CheckpointError, ModelConfigError: the model can't be opened.
    """
    rows = []
    for row in _rows(args.model, args.self_test):
        rows.append(row)
        if not args.json:
            print(_line(row), flush=True)
    failed = any(row.status == "fail" for row in rows)
    if args.json:
        print(json.dumps({"ok": not failed, "checks": [asdict(row) for row in rows]}))
    return 1 if failed else 0


def _line(row: "Row") -> str:
    advice = f"  -> {row.advice}" if row.advice else ""
    return f"{row.status:<5} {row.name:<22} {row.found}{advice}"


def _rows(model: str | None, self_test: bool) -> Iterator["Row"]:
    from onecat_jax.cli.environment import Row, environment  # imports JAX

    broken = False
    for row in environment():
        broken |= row.name == "extension" and row.status == "fail"
        yield row
    if self_test and not broken:
        from onecat_jax.cli.self_test import self_test_rows

        yield from self_test_rows()
    if model is not None and broken:
        yield Row("checkpoint", "fail", "not checked", "repair the extension first")
        return
    if model is not None:
        from onecat_jax.cli.check_model import checkpoint_rows  # needs the extension, checked above

        yield from checkpoint_rows(model)
