"""A converted checkpoint under the names and dtypes of an export in safetensors: what reads one reads both."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onecat_jax.custom_calls.linear.weights import GROUP
from onecat_jax.errors import CheckpointError
from onecat_jax.loading.checkpoint import Checkpoint
from onecat_jax.loading.dtypes import DTYPES
from onecat_jax.loading.orbax.canonical import CODES, GLOBAL_SCALE, SCALES, part_of, section_of
from onecat_jax.loading.orbax.checksum import checksum
from onecat_jax.loading.orbax.manifest import (
    AGAIN,
    ARRAYS,
    MANIFEST,
    ArrayRecord,
    Manifest,
    TensorRecord,
    read_manifest,
)
from onecat_jax.loading.safetensors_file import TensorInfo

if TYPE_CHECKING:
    from onecat_jax.loading.orbax.reader import ArrayReader, Extent, Pending

_CODE_OF = {dtype.name: code for code, dtype in DTYPES.items()}  # numpy's name -> safetensors'
_SUFFIX_OF = {CODES: "", SCALES: "_scale", GLOBAL_SCALE: "_scale_2"}  # ModelOpt's


@dataclass(frozen=True)
class OrbaxCheckpoint(Checkpoint):
    """An opened converted checkpoint: the manifest is read, sizes of files are compared, no array is touched.

    An NVFP4 tensor appears as weight, weight_scale and weight_scale_2; query, key and value appear side by side again.
    """

    manifest: Manifest

    @classmethod
    def of(cls, root: Path, **common: Any) -> "OrbaxCheckpoint":
        """Opens a folder that holds a manifest.

        Args:
          common: what every kind of checkpoint has, already read.

        Raises:
          CheckpointError: damaged; the message names the file or the tensor.
        """
        manifest = read_manifest(root / MANIFEST)
        _check_files(root, manifest.files)
        tensors = {
            stored: info
            for name, record in manifest.tensors.items()
            for stored, _, info in _stored(root, name, record)
        }
        return cls(root=root, tensors=tensors, files={}, manifest=manifest, **common)

    @cached_property
    def reader(self) -> "ArrayReader":
        """Reads stored arrays."""
        from onecat_jax.loading.orbax.reader import ArrayReader  # imports orbax

        return ArrayReader(self.root / ARRAYS)

    @cached_property
    def _parts(self) -> dict[str, list[str]]:
        """Name that a tensor appears under -> its arrays, sections in order."""
        return {
            stored: sorted((a for a in record.arrays if part_of(a) == part), key=section_of)
            for name, record in self.manifest.tensors.items()
            for stored, part, _ in _stored(self.root, name, record)
        }

    @cached_property
    def _records(self) -> dict[str, ArrayRecord]:
        tensors = self.manifest.tensors.values()
        return {name: found for record in tensors for name, found in record.arrays.items()}

    def start(self, array: str, extent: "Extent | None" = None) -> "Pending":
        """Begins to read a stored array, or one slice per dimension of it; what it returns waits for the values.

        Raises (here or when it is waited for):
          CheckpointError: it can't be read, or has another shape or dtype than the manifest says.
        """
        return self.reader.start(array, self._records[array], extent)

    def check(self, array: str) -> None:
        """Opens a stored array.

        Raises:
          CheckpointError: it can't be opened, or has another shape or dtype than the manifest says.
        """
        self.reader.check(array, self._records[array])

    def array(self, name: str) -> np.ndarray:
        """A whole tensor in its stored dtype, with the checksums of its arrays compared.

        Raises:
          CheckpointError: an array can't be read, or isn't what was written.
        """
        sections = [self._checked(array) for array in self._parts[name]]
        info = self.tensors[name]
        empty = np.empty(0, DTYPES[info.dtype])
        whole = sections[0] if len(sections) == 1 else np.concatenate(sections or [empty])
        if whole.shape != info.shape:
            raise CheckpointError(
                f"{self.root / MANIFEST}: arrays of {name} make up {list(whole.shape)}, needed is {list(info.shape)}; {AGAIN}"
            )
        return whole

    def _checked(self, array: str) -> np.ndarray:
        values = self.start(array)()
        found, wanted = checksum(values), self._records[array].crc32
        if found != wanted:
            raise CheckpointError(
                f"{self.root / ARRAYS}: the checksum of {array} is {found:08x}, {wanted:08x} was written; {AGAIN}"
            )
        return values


def _check_files(root: Path, files: Mapping[str, int]) -> None:
    for name, size in files.items():
        try:
            found = os.path.getsize(root / name)
        except OSError as error:
            raise CheckpointError(
                f"{root / name} can't be read ({error.strerror}), {MANIFEST} lists it with {size} bytes; {AGAIN}"
            ) from error
        if found != size:
            raise CheckpointError(f"{root / name} has {found} bytes, {size} were written; {AGAIN}")


def _stored(root: Path, name: str, record: TensorRecord) -> Iterator[tuple[str, str, TensorInfo]]:
    """What a tensor appears as: (name, part, where)."""
    for part, (code, shape) in _parts_of(root, name, record).items():
        nbytes = prod(shape) * DTYPES[code].itemsize
        suffix = _SUFFIX_OF.get(part, "")
        yield name + suffix, part, TensorInfo(code, shape, root / ARRAYS, 0, nbytes)


def _parts_of(
    root: Path, name: str, record: TensorRecord
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Part -> dtype and shape as a whole."""
    if record.format == "dense":
        dtypes = {array.dtype for array in record.arrays.values()}
        code = _CODE_OF.get(next(iter(dtypes), ""))
        if code is None or len(dtypes) > 1:
            raise CheckpointError(
                f"{root / MANIFEST}: arrays of {name} have dtype {', '.join(sorted(dtypes)) or 'none'}; one known dtype is "
                f"needed; {AGAIN}"
            )
        return {"": (code, record.shape)}
    if len(record.shape) != 2:
        raise CheckpointError(
            f"{root / MANIFEST}: {name} is nvfp4 of shape {list(record.shape)}, a matrix is needed; {AGAIN}"
        )
    n, k = record.shape
    scales = ("F8_E4M3", (n, k // GROUP))
    return {CODES: ("U8", (n, k // 2)), SCALES: scales, GLOBAL_SCALE: ("F32", ())}
