"""Reads safetensors files: 8 bytes of header length, a JSON header, then the tensors' bytes.

Opening reads the header only and validates all of it against the size of the file. Tensors are
views of one read-only memory map per file; no byte of a tensor is read before somebody looks at it.
"""

import json
import math
import mmap
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from onecat_jax.errors import CheckpointError
from onecat_jax.loading.dtypes import DTYPES

MAX_HEADER_BYTES = 100_000_000
_MAX_TENSOR_BYTES = 1 << 62
_MAX_DIMS = 32
_WINDOW = 128 << 10  # bytes: the smallest readahead window that systems have by default
_LFS_POINTER = b"version https://git-lfs"
_AGAIN = "copy or download the file again"


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies.

    Attributes:
      dtype: its name in the header, a key of `onecat_jax.loading.dtypes.DTYPES`.
      offset: of its first byte, from the start of the file.
      nbytes: size of the elements in bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int


@dataclass(frozen=True)
class SafetensorsFile:
    """An opened file: every tensor it holds, and views of them."""

    path: Path
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]

    @classmethod
    def open(cls, path: Path) -> "SafetensorsFile":
        """Reads and validates the header.

        Raises:
          CheckpointError: the file can't be read, is shorter or longer than its header says, or its
            header isn't valid.
        """
        size, header = _read_header(path)
        start = 8 + len(header)
        entries = _parse_json(path, header)
        metadata = _metadata(path, entries.pop("__metadata__", {}))
        tensors = {name: _tensor(path, name, entry, start, size) for name, entry in entries.items()}
        _check_coverage(path, tensors, start, size)
        return cls(path, tensors, metadata)

    @cached_property
    def _map(self) -> mmap.mmap:
        try:
            with self.path.open("rb") as file:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.path} can't be mapped into memory: {error}") from error

    def array(self, name: str) -> np.ndarray:
        """A read-only view of one tensor in its file dtype; bytes are read from disk on first use.

        Raises:
          CheckpointError: the file got shorter since it was opened.
          KeyError: the file holds no such tensor.
        """
        info = self.tensors[name]
        dtype = DTYPES[info.dtype]
        if info.nbytes == 0:
            return np.empty(info.shape, dtype)
        if info.offset + info.nbytes > len(self._map):
            raise CheckpointError(
                f"{self.path} has {len(self._map)} bytes now and had more when it was opened; "
                f"{_AGAIN}"
            )
        view = np.ndarray(info.shape, dtype, buffer=self._map, offset=info.offset)
        view.flags.writeable = False
        return view

    def will_read(self, name: str) -> None:
        """Has the system fetch a tensor from disk; waits for no more than the disk's queue.

        In pieces, for Linux fetches no more than its readahead window of what one call asks for. An error will be found by
        whoever reads the tensor.

        Raises:
          KeyError: the file holds no such tensor.
        """
        info = self.tensors[name]
        if not hasattr(os, "posix_fadvise"):
            return
        with suppress(OSError), self.path.open("rb") as file:
            for start in range(info.offset, info.offset + info.nbytes, _WINDOW):
                os.posix_fadvise(file.fileno(), start, _WINDOW, os.POSIX_FADV_WILLNEED)


def _read_header(path: Path) -> tuple[int, bytes]:
    """Size of the file and the bytes of its JSON header."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(8)
            if head + file.read(len(_LFS_POINTER) - 8) == _LFS_POINTER:
                raise CheckpointError(
                    f"{path} is a Git LFS pointer, not the weights; run 'git lfs pull' in its "
                    "folder"
                )
            length = _header_length(path, head, size)
            file.seek(8)
            return size, file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {error.strerror or error}") from error


def _header_length(path: Path, head: bytes, size: int) -> int:
    if len(head) < 8:
        raise CheckpointError(
            f"{path} has {size} bytes; a safetensors file starts with 8 bytes of header length; "
            f"{_AGAIN}"
        )
    length = int.from_bytes(head, "little")
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{path}: header length is {length} bytes, the limit is {MAX_HEADER_BYTES}; this is no "
            "safetensors file"
        )
    if 8 + length > size:
        raise CheckpointError(
            f"{path} is cut off: the header needs {8 + length} bytes, the file has {size}; {_AGAIN}"
        )
    return length


def _parse_json(path: Path, header: bytes) -> dict[str, Any]:
    def unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise CheckpointError(f"{path}: the header names {key!r} twice; {_AGAIN}")
            found[key] = value
        return found

    try:
        entries = json.loads(header.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the header isn't valid JSON ({error}); {_AGAIN}") from error
    if not isinstance(entries, dict):
        raise CheckpointError(
            f"{path}: the header is a JSON {type(entries).__name__}, an object is needed; {_AGAIN}"
        )
    return entries


def _metadata(path: Path, entry: Any) -> dict[str, str]:
    if not isinstance(entry, dict) or not all(isinstance(v, str) for v in entry.values()):
        raise CheckpointError(
            f"{path}: __metadata__ of the header must map names to strings, found {str(entry)[:80]}"
        )
    return entry


def _tensor(path: Path, name: str, entry: Any, start: int, size: int) -> TensorInfo:
    """Validates one header entry against the size of the file."""
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise CheckpointError(
            f"{path}: tensor {name!r} needs dtype, shape and data_offsets, found {str(entry)[:80]}"
        )
    dtype = entry["dtype"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CheckpointError(
            f"{path}: tensor {name!r} has dtype {dtype!r}, which is unknown; known: "
            f"{', '.join(DTYPES)}"
        )
    shape = _naturals(path, name, "shape", entry["shape"])
    begin, end = _offsets(path, name, entry["data_offsets"])
    needed = _nbytes(path, name, shape, DTYPES[dtype].itemsize)
    if end - begin != needed:
        raise CheckpointError(
            f"{path}: tensor {name!r} of dtype {dtype} and shape {list(shape)} needs {needed} "
            f"bytes, data_offsets [{begin}, {end}] hold {end - begin}; {_AGAIN}"
        )
    if start + end > size:
        raise CheckpointError(
            f"{path} is cut off: tensor {name!r} ends at byte {start + end}, the file has {size}; "
            f"{_AGAIN}"
        )
    return TensorInfo(dtype, shape, path, start + begin, needed)


def _naturals(path: Path, name: str, field: str, value: Any) -> tuple[int, ...]:
    good = isinstance(value, list) and len(value) <= _MAX_DIMS
    if not good or not all(type(v) is int and 0 <= v < _MAX_TENSOR_BYTES for v in value):
        raise CheckpointError(
            f"{path}: tensor {name!r} has {field} {str(value)[:80]}; a list of up to {_MAX_DIMS} "
            "whole numbers is needed"
        )
    return tuple(value)


def _offsets(path: Path, name: str, value: Any) -> tuple[int, int]:
    offsets = _naturals(path, name, "data_offsets", value)
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(
            f"{path}: tensor {name!r} has data_offsets {list(offsets)}; begin and end, begin <= "
            "end, are needed"
        )
    return offsets[0], offsets[1]


def _nbytes(path: Path, name: str, shape: tuple[int, ...], itemsize: int) -> int:
    """Bytes of the elements; refuses shapes that can't be indexed, even with a zero."""
    span = math.prod(max(d, 1) for d in shape) * itemsize
    if span >= _MAX_TENSOR_BYTES:
        raise CheckpointError(
            f"{path}: tensor {name!r} of shape {list(shape)} would span {span} bytes; the limit is "
            "2**62"
        )
    return math.prod(shape) * itemsize


def _check_coverage(path: Path, tensors: Mapping[str, TensorInfo], start: int, size: int) -> None:
    """The data section must be covered exactly once: no overlap, no hole, no rest."""
    at, before = start, ""
    for name, info in sorted(tensors.items(), key=lambda t: (t[1].offset, t[1].nbytes)):
        if info.offset < at:
            raise CheckpointError(
                f"{path}: tensor {name!r} starts at byte {info.offset}, inside tensor {before!r}, "
                f"which ends at {at}; {_AGAIN}"
            )
        if info.offset > at:
            raise CheckpointError(
                f"{path}: bytes {at} to {info.offset} before tensor {name!r} belong to no tensor; "
                f"{_AGAIN}"
            )
        at, before = info.offset + info.nbytes, name
    if at != size:
        raise CheckpointError(
            f"{path} has {size} bytes, its header describes {at}; {size - at} bytes belong to no "
            f"tensor; {_AGAIN}"
        )
