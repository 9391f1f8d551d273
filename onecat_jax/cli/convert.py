"""`onecat convert`: writes a checkpoint in canonical form, as orbax stores it."""

import argparse
import json
from functools import partial

from onecat_jax.cli.options import MODEL_HELP
from onecat_jax.cli.progress import terminal_progress
from onecat_jax.sizes import gib

_EXAMPLES = """examples:
  onecat convert tiny ./tiny-orbax
  onecat convert ./Qwen3.8-27B-NVFP4 /data/qwen-orbax --force
  onecat convert ./Qwen3.8-27B-NVFP4 /data/qwen-orbax --json
  onecat generate "def f(x):" --model /data/qwen-orbax

The folder works wherever a model is named, and orbax restores it onto any number of devices (docs/checkpoints.md).
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Gives the parser of `convert` its texts and options."""
    parser.description = (
        "Writes every tensor unfused, with query, key and value apart, as an orbax checkpoint; configuration, tokenizer and "
        "chat template are copied beside it."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument("model", help=MODEL_HELP)
    parser.add_argument("out", help="folder to make: a missing or an empty one")
    parser.add_argument(
        "--force", action="store_true", help="replace a converted checkpoint in OUT"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Converts, with progress on a terminal, and prints what was written.

    Raises:
      CheckpointError, ModelConfigError: see `convert`.
    """
    from onecat_jax.loading.orbax.convert import convert  # imports JAX

    bar = None if args.json else terminal_progress(unit="B")
    progress = partial(bar, "converting") if bar else lambda *_: None
    done = convert(args.model, args.out, force=args.force, progress=progress)
    rate = done.nbytes / 1e6 / max(done.seconds, 1e-9)
    if args.json:
        result = {
            "model": args.model,
            "path": str(done.folder.absolute()),
            "tensors": done.tensors,
            "arrays": done.arrays,
            "bytes": done.nbytes,
            "seconds": round(done.seconds, 3),
            "megabytes_per_second": round(rate, 1),
        }
        print(json.dumps(result))
        return 0
    print(
        f"{done.folder}: {done.tensors} tensors in {done.arrays} arrays, {gib(done.nbytes)} in {done.seconds:.1f} s "
        f"({rate:.0f} MB/s)"
    )
    return 0
