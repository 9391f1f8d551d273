"""A checkpoint folder: its configuration files and which file holds which tensor."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onecat_jax.errors import CheckpointError
from onecat_jax.json_files import read_json_object, read_optional_json
from onecat_jax.loading.hub import locate
from onecat_jax.loading.orbax.recognise import is_converted
from onecat_jax.loading.safetensors_file import SafetensorsFile, TensorInfo

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
HF_QUANT = "hf_quant_config.json"
_SHARED = ("quantized_layers", "kv_cache_quant_algo")  # what may stand in that file only


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint. Headers are read and validated, weights aren't touched.

    Attributes:
      config: config.json.
      generation_config: generation_config.json, empty if there is none.
      quantization: the quantisation record of config.json, else that of hf_quant_config.json, else
        None.
      quantization_file: name of the file that the record came from.
      tensors: every tensor under its stored name.
    """

    root: Path
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    quantization: Mapping[str, Any] | None
    quantization_file: str
    tensors: Mapping[str, TensorInfo]
    files: Mapping[Path, SafetensorsFile]

    @classmethod
    def open(cls, model: str | Path) -> "Checkpoint":
        """Opens a folder (of safetensors, or converted), the embedded "tiny", or downloads owner/name.

        Raises:
          CheckpointError: missing, no checkpoint, or damaged; the message names the file.
        """
        root = locate(model)
        converted = is_converted(root)
        _check_folder(root)
        config = read_json_object(root / "config.json")
        quantization, source = _quantization(root, config)
        common: dict[str, Any] = {
            "root": root,
            "config": config,
            "generation_config": read_optional_json(root / "generation_config.json"),
            "quantization": quantization,
            "quantization_file": source,
        }
        if converted:
            # It imports this module.
            from onecat_jax.loading.orbax.checkpoint import OrbaxCheckpoint

            return OrbaxCheckpoint.of(**common)
        tensors, files = _open_weights(root)
        return cls(tensors=tensors, files=files, **common)

    def array(self, name: str) -> np.ndarray:
        """A tensor in its file dtype: a read-only view of it, read from disk when it is used."""
        return self.files[self.tensors[name].file].array(name)

    def will_read(self, names: Iterable[str]) -> None:
        """Tells the system that these tensors are used next, so that it fetches them from disk in the meantime."""
        for name in names:
            self.files[self.tensors[name].file].will_read(name)


def _check_folder(root: Path) -> None:
    if not os.path.isdir(root):
        raise CheckpointError(
            f"{root} is a file; give the folder that holds it (config.json and *.safetensors are "
            "looked for)"
        )
    if not os.path.isfile(root / "config.json"):
        raise CheckpointError(
            f"{root} is no checkpoint: there is no config.json in it (looked for config.json, "
            f"{INDEX}, {SINGLE}, *.safetensors; {_contents(root)})"
        )


def _contents(root: Path) -> str:
    try:
        names = sorted(os.listdir(root))
    except OSError as error:
        return f"the folder can't be listed: {error.strerror}"
    if not names:
        return "the folder is empty"
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"found {', '.join(names[:5])}{more}"


def _quantization(root: Path, config: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, str]:
    """The record that says which layers are quantised, and the name of its file."""
    text = config.get("text_config")
    inner = text.get("quantization_config") if isinstance(text, dict) else None
    record = config.get("quantization_config") or inner
    source = "config.json"
    other = read_optional_json(root / HF_QUANT).get("quantization")
    if record is None and other is not None:
        source = HF_QUANT
        record = {"quant_method": "modelopt", **other} if isinstance(other, dict) else other
    if record is not None and not isinstance(record, dict):
        raise CheckpointError(
            f"{root / source}: the quantisation record is {record!r}, an object is needed"
        )
    if isinstance(record, dict) and isinstance(other, dict):
        _check_alike(root, record, other)
        shared = {key: other[key] for key in _SHARED if other.get(key)}
        record = shared | {
            key: value for key, value in record.items() if value or key not in shared
        }
    return record, source


def _check_alike(root: Path, record: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Both files of a ModelOpt export must name one algorithm."""
    named = [str(found["quant_algo"]) for found in (record, other) if found.get("quant_algo")]
    if len({name.upper() for name in named}) > 1:
        raise CheckpointError(
            f"{root}: quant_algo is {named[0]!r} in config.json and {named[1]!r} in {HF_QUANT}; the files don't belong "
            "together, download both again"
        )


def _open_weights(root: Path) -> tuple[dict[str, TensorInfo], dict[Path, SafetensorsFile]]:
    if (root / INDEX).is_file():
        return _open_indexed(root)
    single = root / SINGLE
    paths = [single] if single.is_file() else sorted(root.glob("*.safetensors"))
    if not paths:
        raise CheckpointError(
            f"{root} holds no weights: none of {INDEX}, {SINGLE} and *.safetensors is there "
            f"({_contents(root)})"
        )
    files = {path: SafetensorsFile.open(path) for path in paths}
    tensors: dict[str, TensorInfo] = {}
    for path, file in files.items():
        for name, info in file.tensors.items():
            if name in tensors:
                raise CheckpointError(
                    f"{root}: tensor {name!r} is in {tensors[name].file.name} and in {path.name}; "
                    f"add an {INDEX} that says which one counts, or remove one of the files"
                )
            tensors[name] = info
    return tensors, files


def _open_indexed(root: Path) -> tuple[dict[str, TensorInfo], dict[Path, SafetensorsFile]]:
    """The index decides which file a tensor comes from, whatever else the files hold."""
    weight_map = _weight_map(root / INDEX)
    paths = {name: root / name for name in sorted(set(weight_map.values()))}
    missing = [name for name, path in paths.items() if not os.path.isfile(path)]
    if missing:
        raise CheckpointError(
            f"{root / INDEX} names {len(paths)} files, {len(missing)} of them missing: "
            f"{', '.join(missing[:5])}; complete the download or remove a stale index"
        )
    files = {name: SafetensorsFile.open(path) for name, path in paths.items()}
    tensors: dict[str, TensorInfo] = {}
    for tensor, name in weight_map.items():
        if tensor not in files[name].tensors:
            raise CheckpointError(
                f"{root / name} lacks tensor {tensor!r}, which {INDEX} promises there; file and "
                "index don't belong together, download both again"
            )
        tensors[tensor] = files[name].tensors[tensor]
    return tensors, {paths[name]: file for name, file in files.items()}


def _weight_map(path: Path) -> dict[str, str]:
    weight_map = read_json_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{path} has no weight_map; an object from tensor to file name is needed"
        )
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or not name or Path(name).name != name:
            raise CheckpointError(
                f"{path} maps tensor {tensor!r} to {name!r}; the name of a file in the same folder "
                "is needed"
            )
    return weight_map
