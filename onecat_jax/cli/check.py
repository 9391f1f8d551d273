"""`onecat check`: whether this installation, and a checkpoint if one is named, will work."""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tqdm import tqdm

from onecat_jax.cli.environment import Row, environment
from onecat_jax.loading.checkpoint import Checkpoint
from onecat_jax.loading.sources import find_sources
from onecat_jax.loading.verify import verify
from onecat_jax.models.registry import resolve

_LISTED = 5
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
    yield from environment()
    if model is not None:
        yield from checkpoint_rows(model)


def checkpoint_rows(model: str) -> Iterator[Row]:
    """One row about the checkpoint, and one about each of the first tensors that fail or warn.

    Raises:
      CheckpointError, ModelConfigError: the model can't be opened, or its tensors don't fit its
      architecture.
    """
    checkpoint = Checkpoint.open(model)
    family = resolve(checkpoint.config)
    specs = family.tensor_specs(family.read_config(checkpoint.config))
    sources = find_sources(checkpoint, specs)
    findings = verify(checkpoint, sources)
    quiet = not sys.stderr.isatty()
    shown = tqdm(findings, total=len(sources), unit="tensor", disable=quiet, leave=False)
    bad = [(name, *finding) for name, finding in shown if finding[0] != "ok"]
    failed = sum(status == "fail" for _, status, _ in bad)
    found = f"{len(sources)} tensors, {failed} fail, {len(bad) - failed} warn"
    yield Row("checkpoint", "fail" if failed else "ok", f"{checkpoint.root}: {found}")
    for name, status, text in sorted(bad, key=lambda entry: entry[1])[:_LISTED]:
        yield Row(name, status, text)
