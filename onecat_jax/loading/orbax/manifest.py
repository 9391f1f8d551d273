"""The manifest beside the arrays: its presence makes a folder a checkpoint of ours, its content says what must be there."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onecat_jax.errors import CheckpointError
from onecat_jax.json_files import read_json_object

MANIFEST = "onecat_checkpoint.json"
UNFINISHED = f"{MANIFEST}.unfinished"  # in a folder that is being written
ARRAYS = "params"  # the folder of the orbax checkpoint
FORMAT = "onecat canonical orbax checkpoint"
VERSION = 1
AGAIN = "copy the folder again, or convert again"


@dataclass(frozen=True)
class ArrayRecord:
    """One stored array.

    Attributes:
      dtype: numpy's name.
      crc32: of its elements in row-major order.
    """

    dtype: str
    shape: tuple[int, ...]
    crc32: int


@dataclass(frozen=True)
class TensorRecord:
    """One canonical tensor.

    Attributes:
      format: "dense" or "nvfp4".
      source: how the checkpoint that it was converted from stored it, e.g. "BF16", "NVFP4 (ModelOpt)".
      shape: logical shape.
      arrays: by dotted name in the tree.
    """

    format: str
    source: str
    shape: tuple[int, ...]
    arrays: Mapping[str, ArrayRecord]


@dataclass(frozen=True)
class Manifest:
    """What a converted checkpoint holds.

    Attributes:
      versions: of the packages that wrote it.
      converted_from: name of the folder that it was converted from.
      nbytes: of all arrays.
      tensors: by canonical name.
      files: sizes in bytes of the orbax checkpoint's files, by path in the folder.
    """

    versions: Mapping[str, str]
    converted_from: str
    nbytes: int
    tensors: Mapping[str, TensorRecord]
    files: Mapping[str, int]


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Writes the file as JSON and waits until the disk has it."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "written_by": dict(manifest.versions),
        "converted_from": manifest.converted_from,
        "bytes": manifest.nbytes,
        "files": dict(manifest.files),
        "tensors": {name: _tensor_json(record) for name, record in manifest.tensors.items()},
    }
    entries = ",\n".join(f'"{name}": {_lines(value)}' for name, value in content.items())
    with path.open("w", encoding="utf-8") as file:
        file.write(f"{{\n{entries}\n}}\n")
        file.flush()
        os.fsync(file.fileno())


def _lines(value: Any) -> str:
    """JSON with one entry of an object per line, so that people can read and compare manifests."""
    if not isinstance(value, dict):
        return json.dumps(value)
    entries = (f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in value.items())
    return "{\n " + ",\n ".join(entries) + "\n}"


def _tensor_json(record: TensorRecord) -> dict[str, Any]:
    arrays = {
        name: {"dtype": a.dtype, "shape": list(a.shape), "crc32": f"{a.crc32:08x}"}
        for name, a in record.arrays.items()
    }
    return {
        "format": record.format,
        "source": record.source,
        "shape": list(record.shape),
        "arrays": arrays,
    }


def read_manifest(path: Path) -> Manifest:
    """Reads and validates the file.

    Raises:
      CheckpointError: unreadable, of another format or version, or a field is missing or of a wrong kind.
    """
    return _Reader(path, read_json_object(path)).manifest()


@dataclass(frozen=True)
class _Reader:
    """Reads fields, naming the field in every refusal."""

    path: Path
    content: Mapping[str, Any]

    def manifest(self) -> Manifest:
        self._check_version()
        tensors = self._field(self.content, "tensors", dict)
        files = self._field(self.content, "files", dict)
        return Manifest(
            versions=self._field(self.content, "written_by", dict),
            converted_from=self._field(self.content, "converted_from", str),
            nbytes=self._field(self.content, "bytes", int),
            tensors={name: self._tensor(name, entry) for name, entry in tensors.items()},
            files={name: self._field(files, name, int) for name in files},
        )

    def _check_version(self) -> None:
        found, version = self.content.get("format"), self.content.get("version")
        if found != FORMAT:
            raise CheckpointError(
                f"{self.path}: format is {found!r}, {FORMAT!r} is needed; {AGAIN}"
            )
        if version != VERSION:
            by = self.content.get("written_by")
            raise CheckpointError(
                f"{self.path}: version is {version!r} (written by {by}), this onecat-jax reads version {VERSION}; "
                "convert again with this one, or use the one that wrote it"
            )

    def _tensor(self, name: str, entry: Any) -> TensorRecord:
        arrays = self._field(entry, "arrays", dict)
        form = self._field(entry, "format", str)
        if form not in ("dense", "nvfp4"):
            raise CheckpointError(
                f"{self.path}: tensor {name!r} has format {form!r}; dense or nvfp4 is needed; {AGAIN}"
            )
        return TensorRecord(
            format=form,
            source=self._field(entry, "source", str),
            shape=self._shape(entry),
            arrays={array: self._array(found) for array, found in arrays.items()},
        )

    def _array(self, entry: Any) -> ArrayRecord:
        crc32 = self._field(entry, "crc32", str)
        try:
            return ArrayRecord(
                self._field(entry, "dtype", str), self._shape(entry), int(crc32, base=16)
            )
        except ValueError as error:
            raise CheckpointError(
                f"{self.path}: crc32 is {crc32!r}, hexadecimal digits are needed; {AGAIN}"
            ) from error

    def _shape(self, entry: Any) -> tuple[int, ...]:
        shape = self._field(entry, "shape", list)
        if not all(type(size) is int and size >= 0 for size in shape):
            raise CheckpointError(
                f"{self.path}: shape is {shape}, whole numbers are needed; {AGAIN}"
            )
        return tuple(shape)

    def _field(self, entry: Any, name: str, kind: type) -> Any:
        value = entry.get(name) if isinstance(entry, dict) else None
        if type(value) is not kind:
            raise CheckpointError(
                f"{self.path}: {name} is {str(value)[:80]!r}, {_KINDS[kind]} is needed; {AGAIN}"
            )
        return value


_KINDS = {dict: "an object", str: "a text", int: "a whole number", list: "a list"}
