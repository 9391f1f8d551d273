"""`onecat check`: whether this installation, and a checkpoint if one is named, will work."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from onecat_jax.cli.environment import Row, environment

_EXAMPLES = """examples:
  onecat check
  onecat check ./Qwen3.8-27B-NVFP4
  onecat check tiny --json

exit code: 0 all well or warnings only, 1 something fails, 2 the model can't be opened
"""


def add_parser(subparsers: Any) -> None:
    """Adds `check` to the commands."""
    parser = subparsers.add_parser(
        "check",
        help="whether the installation and a checkpoint will work",
        description="Checks versions, devices, the extension, routes; with MODEL every tensor too.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", help="folder, owner/name, or tiny")
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
    for row in _rows(args.model):
        rows.append(row)
        if not args.json:
            print(_line(row), flush=True)
    failed = any(row.status == "fail" for row in rows)
    if args.json:
        print(json.dumps({"ok": not failed, "checks": [asdict(row) for row in rows]}))
    return 1 if failed else 0


def _line(row: Row) -> str:
    advice = f"  -> {row.advice}" if row.advice else ""
    return f"{row.status:<5} {row.name:<22} {row.found}{advice}"


def _rows(model: str | None) -> Iterator[Row]:
    broken = False
    for row in environment():
        broken |= row.name == "extension" and row.status == "fail"
        yield row
    if model is not None and broken:
        yield Row("checkpoint", "fail", "not checked", "repair the extension first")
        return
    if model is not None:
        from onecat_jax.cli.check_model import checkpoint_rows  # needs the extension, checked above

        yield from checkpoint_rows(model)
