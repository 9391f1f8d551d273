"""The part of `onecat check` that looks at a checkpoint."""

import sys
from collections.abc import Iterator

from tqdm import tqdm

from onecat_jax.cli.environment import Row
from onecat_jax.loading.checkpoint import Checkpoint
from onecat_jax.loading.sources import find_sources
from onecat_jax.loading.verify import verify
from onecat_jax.models.registry import resolve

_LISTED = 5


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
