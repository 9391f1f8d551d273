"""From what a user names as a model to a local folder."""

import os
import re
from importlib import resources
from pathlib import Path

from onecat_jax.errors import CheckpointError

EMBEDDED = "tiny"
_HUB_NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt"]


def locate(model: str | Path, revision: str | None = None) -> Path:
    """The folder of a model: a path, the embedded "tiny", or owner/name on the Hugging Face Hub.

    Only a name of the form owner/name that is no local path reaches the network.

    Args:
      model: what the user named.
      revision: branch, tag or commit of a name on the Hub.

    Raises:
      CheckpointError: nothing is there, or the download failed.
    """
    if str(model) == EMBEDDED:
        return embedded("target")
    path = Path(model).expanduser()
    if os.path.exists(path):
        return path
    if isinstance(model, str) and _HUB_NAME.fullmatch(model):
        return _download(model, revision)
    raise CheckpointError(
        f"{model} doesn't exist; a folder with config.json and *.safetensors is needed, a name "
        f"owner/name of the Hugging Face Hub, or '{EMBEDDED}' for the embedded model"
    )


def locate_draft(model: str | Path, revision: str | None = None) -> Path:
    """The folder of a draft checkpoint, as `locate` finds that of a model; "tiny" is the embedded model's draft."""
    if str(model) == EMBEDDED:
        return embedded("dflash2")
    return locate(model, revision)


def embedded(part: str) -> Path:
    """Folder of a part of the embedded model: "target" or "dflash2"."""
    folder = resources.files("onecat_jax").joinpath("assets", EMBEDDED, part)
    path = Path(str(folder))
    if not path.is_dir():
        raise CheckpointError(
            f"the embedded model is missing at {path}; onecat_jax must be installed unpacked, "
            "reinstall it"
        )
    return path


def _download(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download  # slow to import, and most models are local

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=_FILES))
    except Exception as error:  # whatever fails in the client or its transport, the advice is one
        reason = (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")
        raise CheckpointError(
            f"{name} is no local folder, and it can't be fetched from the Hugging Face Hub: "
            f"{reason}; check the name and the connection, or pass the path of a downloaded copy"
        ) from error
