"""The JSON files that lie beside a checkpoint's weights."""

import json
from pathlib import Path
from typing import Any

from onecat_jax.errors import CheckpointError


def read_json_object(path: Path) -> dict[str, Any]:
    """A JSON file that must hold an object.

    Raises:
      CheckpointError: unreadable, not JSON, or another kind of value.
    """
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} isn't valid JSON: {error}; copy or download the file again"
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a JSON {type(value).__name__}; an object is needed")
    return value


def read_optional_json(path: Path) -> dict[str, Any]:
    """The same, empty if there is no such file."""
    return read_json_object(path) if path.is_file() else {}
