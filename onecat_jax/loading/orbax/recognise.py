"""Tells a converted checkpoint from one that isn't complete and from orbax folders of other programs."""

import os
from pathlib import Path

from onecat_jax.errors import CheckpointError
from onecat_jax.loading.orbax.manifest import ARRAYS, MANIFEST, UNFINISHED

_ORBAX_FILES = ("_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt")


def is_converted(root: Path) -> bool:
    """Whether a folder is a converted checkpoint: whether it holds the manifest.

    Raises:
      CheckpointError: it is an orbax folder without one.
    """
    if (root / MANIFEST).is_file():
        return True
    if (root / UNFINISHED).is_file():
        raise CheckpointError(
            f"{root} is a conversion that didn't finish; run onecat convert again"
        )
    if _is_orbax(root / ARRAYS) and (root / "config.json").is_file():
        raise CheckpointError(
            f"{root} holds arrays of orbax in {ARRAYS}, but no {MANIFEST}: a converted checkpoint that wasn't copied "
            "completely; copy the folder again, or convert again"
        )
    if not any(root.glob("*.safetensors")) and (found := _orbax_folder(root)):
        raise CheckpointError(
            f"{found} is an orbax checkpoint that onecat convert didn't write: there is no {MANIFEST} in {root}; "
            "give the Hugging Face folder that it came from, or convert that one with onecat convert"
        )
    return False


def _orbax_folder(root: Path) -> Path | None:
    """The folder itself, or one in it (an item, a step)."""
    if _is_orbax(root):
        return root
    try:
        inside = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    except OSError:
        return None  # whoever opens the folder says why it can't be read
    return next((root / name for name in inside if _is_orbax(root / name)), None)


def _is_orbax(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _ORBAX_FILES)
