"""From an export in safetensors to a checkpoint in canonical form."""

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import metadata
from pathlib import Path

import numpy as np

from onecat_jax.errors import CheckpointError
from onecat_jax.loading.cache_scales import find_cache_scales
from onecat_jax.loading.checkpoint import Checkpoint
from onecat_jax.loading.dtypes import DTYPES
from onecat_jax.loading.formats import Mismatch, NVFP4Source, Source
from onecat_jax.loading.orbax.canonical import CanonicalArray, arrays_of, values_of
from onecat_jax.loading.orbax.checkpoint import OrbaxCheckpoint
from onecat_jax.loading.orbax.manifest import (
    ARRAYS,
    MANIFEST,
    UNFINISHED,
    ArrayRecord,
    Manifest,
    TensorRecord,
    write_manifest,
)
from onecat_jax.loading.orbax.output import output_folder
from onecat_jax.loading.sources import find_sources
from onecat_jax.models import registry
from onecat_jax.models.slices import HostTensor

Progress = Callable[[int, int], None]  # bytes done, bytes in all
_COPIED = (".json", ".jinja", ".txt", ".model", ".md")  # configuration, tokenizer, template, card
_LICENCES = ("LICENSE", "NOTICE")
_INDEX = ".safetensors.index.json"
_CONFIG = "config.json"


@dataclass(frozen=True)
class Conversion:
    """What was done.

    Attributes:
      tensors, arrays: counts of canonical tensors and of stored arrays.
      nbytes: of the arrays.
      seconds: wall time.
    """

    source: Path
    folder: Path
    tensors: int
    arrays: int
    nbytes: int
    seconds: float


def convert(
    model: str | Path, out: str | Path, *, force: bool = False, progress: Progress = lambda *_: None
) -> Conversion:
    """Writes a checkpoint's tensors in canonical form, with its configuration, tokenizer and template.

    Views of the mapped files go to disk tensor by tensor; the host never holds the model.

    Args:
      model: what `Checkpoint.open` takes.
      out: a folder that doesn't exist or is empty.
      force: replaces a converted checkpoint in `out`.
      progress: called with bytes done and bytes in all.

    Raises:
      CheckpointError, ModelConfigError: the checkpoint can't be used or is converted already, `out` can't be written, or there
        is too little space; nothing is left at `out` then.
    """
    start = time.perf_counter()
    checkpoint = Checkpoint.open(model)
    if isinstance(checkpoint, OrbaxCheckpoint):
        raise CheckpointError(f"{checkpoint.root} is converted already; copy the folder instead")
    family = registry.resolve(checkpoint.config)
    specs = family.tensor_specs(family.read_config(checkpoint.config))
    sources = find_sources(checkpoint, specs)
    _check_convertible(checkpoint, sources)
    arrays = {name: _arrays(checkpoint, name, source) for name, source in sources.items()}
    nbytes = sum(array.nbytes for found in arrays.values() for array in found)
    copied = _files_to_copy(checkpoint.root)
    needed = nbytes + sum(os.path.getsize(path) for path in copied)
    with output_folder(Path(out), needed=needed, force=force) as folder:
        checksums = _write(checkpoint, sources, arrays, folder / ARRAYS, _counted(progress, nbytes))
        records = {
            name: _record(checkpoint, source, arrays[name], checksums)
            for name, source in sources.items()
        }
        for path in copied:
            shutil.copyfile(path, folder / path.name)
        manifest = Manifest(_versions(), checkpoint.root.name, nbytes, records, _files(folder))
        write_manifest(folder / UNFINISHED, manifest)
        os.replace(folder / UNFINISHED, folder / MANIFEST)
    count = sum(map(len, arrays.values()))
    seconds = time.perf_counter() - start
    return Conversion(checkpoint.root, Path(out), len(arrays), count, nbytes, seconds)


def _check_convertible(checkpoint: Checkpoint, sources: Mapping[str, Source]) -> None:
    """Refuses what the canonical form has no place for."""
    for source in sources.values():
        if source.format not in ("dense", "nvfp4"):
            raise CheckpointError(
                f"{checkpoint.root}: {source.weight} is {source.storage}, the canonical form holds dense and nvfp4 tensors; "
                "load the export itself"
            )
    if not find_cache_scales(checkpoint).trivial:
        raise CheckpointError(
            f"{checkpoint.root} stores scales of a key/value cache, for which the canonical form has no place; load the export "
            "itself"
        )


def _counted(progress: Progress, total: int) -> Callable[[int], None]:
    """From sizes of single arrays to the sum so far."""
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(done, total)

    return advance


def _arrays(checkpoint: Checkpoint, name: str, source: Source) -> list[CanonicalArray]:
    dtype = DTYPES[checkpoint.tensors[source.weight].dtype]
    return arrays_of(name, source.spec, source.format, dtype)


def _write(
    checkpoint: Checkpoint,
    sources: Mapping[str, Source],
    arrays: Mapping[str, list[CanonicalArray]],
    folder: Path,
    progress: Callable[[int], None],
) -> dict[str, int]:
    """Stores all arrays and returns their checksums."""
    from onecat_jax.loading.orbax.writer import Leaf, write_arrays  # imports orbax

    @lru_cache(maxsize=2)  # the arrays of a tensor are asked for one after the other
    def tensor(name: str) -> HostTensor:
        try:
            return sources[name].read(checkpoint.array)
        except Mismatch as mismatch:
            problem = mismatch.within(checkpoint.tensors)
            raise CheckpointError(f"{checkpoint.root}: {problem}") from mismatch

    def read(name: str, array: CanonicalArray) -> np.ndarray:
        return values_of(array, tensor(name), sources[name].spec)

    leaves = {
        array.name: Leaf(array, partial(read, name, array))
        for name, found in arrays.items()
        for array in found
    }
    return write_arrays(folder, leaves, progress)


def _record(
    checkpoint: Checkpoint,
    source: Source,
    arrays: Sequence[CanonicalArray],
    checksums: Mapping[str, int],
) -> TensorRecord:
    divides = isinstance(source, NVFP4Source) and source.divides
    naming = "compressed-tensors" if divides else "ModelOpt"
    dense = checkpoint.tensors[source.weight].dtype
    return TensorRecord(
        format=source.format,
        source=dense if source.format == "dense" else f"NVFP4 ({naming})",
        shape=source.spec.shape,
        arrays={a.name: ArrayRecord(a.dtype.name, a.shape, checksums[a.name]) for a in arrays},
    )


def _files_to_copy(root: Path) -> list[Path]:
    """What lies beside the weights; config.json last, without which nothing is a checkpoint."""
    left_out = (MANIFEST, UNFINISHED)
    found = [
        path
        for path in sorted(root.iterdir())
        if path.is_file()
        and (path.suffix in _COPIED or path.stem in _LICENCES)
        and not path.name.endswith(_INDEX)
        and path.name not in left_out
    ]
    return sorted(found, key=lambda path: path.name == _CONFIG)


def _files(folder: Path) -> dict[str, int]:
    """Sizes of the orbax checkpoint's files."""
    paths = sorted(path for path in (folder / ARRAYS).rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("onecat-jax", "orbax-checkpoint", "jax")}
