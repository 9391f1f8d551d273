"""The folder that a conversion writes: made beside its final place, and moved there when it is complete.

States that an interruption can leave: a folder `NAME.partial` with the file UNFINISHED in it, which nothing loads and the next
conversion removes; or a complete one that only wasn't moved, which the next conversion removes too. OUT itself never holds half
a checkpoint. One that is replaced waits beside it, as `NAME.replaced-` and some letters, until the new one is in its place.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from onecat_jax.errors import CheckpointError
from onecat_jax.loading.orbax.manifest import MANIFEST, UNFINISHED
from onecat_jax.sizes import gib

_SPARE = 16 * 2**20  # indexes and file system blocks


@contextmanager
def output_folder(out: Path, *, needed: int, force: bool) -> Iterator[Path]:
    """A folder to fill, which becomes `out` when the block ends, and is removed if it fails.

    Args:
      out: missing, an empty folder, or with `force` a converted checkpoint to replace.
      needed: bytes that will be written.

    Raises:
      CheckpointError: `out` can't be written or replaced, is being written, or there is too little space.
    """
    out = Path(os.path.realpath(out))  # a link stays, what it points to is written
    _check_target(out, force)
    partial = out.with_name(f"{out.name}.partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with _claimed(partial):
            try:
                _check_space(partial, needed)
                yield partial
                _move(partial, out)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(
            f"{error.filename or out} can't be read or written: {reason}; nothing is left at {out}"
        ) from error


def _check_target(out: Path, force: bool) -> None:
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        raise CheckpointError(f"{out} is a file; give the name of a folder to make")
    if (out / MANIFEST).is_file():
        if not force:
            raise CheckpointError(
                f"{out} holds a converted checkpoint; give another name, or --force to replace it"
            )
    elif count := len(os.listdir(out)):
        raise CheckpointError(
            f"{out} holds {count} files and isn't a converted checkpoint, so it isn't replaced; give a missing or an empty "
            "folder"
        )


@contextmanager
def _claimed(partial: Path) -> Iterator[None]:
    """Makes the folder, emptied of what an interrupted conversion left; one process at a time."""
    partial.mkdir(exist_ok=True)
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        _lock(descriptor, partial)
        _remove_leftovers(partial)
        (partial / UNFINISHED).touch()
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, partial: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise CheckpointError(
            f"another conversion is writing {partial}; wait for it, or give another name"
        ) from error


def _remove_leftovers(partial: Path) -> None:
    names = os.listdir(partial)
    if names and not {MANIFEST, UNFINISHED} & set(names):
        raise CheckpointError(
            f"{partial} is needed as a temporary folder and holds other files; move it away, or give another name"
        )
    for name in names:
        path = partial / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed + _SPARE > free:
        raise CheckpointError(
            f"{folder.parent} has {gib(free)} free, {gib(needed + _SPARE)} are needed; make space or give a folder on another "
            "disk"
        )


def _move(partial: Path, out: Path) -> None:
    """Replaces `out`: at no time does it hold a part of a checkpoint."""
    if not (out.exists() and os.listdir(out)):
        os.rename(partial, out)
        return
    old = Path(mkdtemp(prefix=f"{out.name}.replaced-", dir=out.parent))  # a name that nobody has
    try:
        os.rename(out, old)
    except OSError:  # a mount point, say
        old.rmdir()
        raise
    os.rename(partial, out)
    shutil.rmtree(old, ignore_errors=True)
