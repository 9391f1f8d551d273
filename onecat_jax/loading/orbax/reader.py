"""Reads arrays of an orbax checkpoint, or the part of one that a rank holds, straight to the host."""

from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import tensorstore
from orbax.checkpoint import type_handlers

from onecat_jax.errors import CheckpointError, first_line
from onecat_jax.loading.orbax.manifest import AGAIN, MANIFEST, ArrayRecord

Extent = tuple[slice, ...]
Pending = Callable[[], np.ndarray]


class ArrayReader:
    """The arrays of one folder, each opened on its first use.

    Packing happens on the host, so a rank's part is read to where it is needed. Restoring it as a device array first (what
    `restore_canonical` does) would carry every byte to the device, back, and there again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._opened: dict[str, tensorstore.TensorStore] = {}

    @cached_property
    def _context(self) -> tensorstore.Context:
        return type_handlers.get_ts_context(use_ocdbt=True)

    def check(self, name: str, record: ArrayRecord) -> tensorstore.TensorStore:
        """Opens an array.

        Args:
          record: what it must be.

        Raises:
          CheckpointError: it can't be opened, or is something else.
        """
        try:
            store = self._open(name)
        except Exception as error:  # whatever fails inside the storage library, the advice is one
            raise unreadable(self._folder, name, error) from error
        if (store.dtype.name, store.shape) != (record.dtype, record.shape):
            raise CheckpointError(
                f"{self._folder}: array {name} is {store.dtype.name} {list(store.shape)}, {MANIFEST} says {record.dtype} "
                f"{list(record.shape)}; {AGAIN}"
            )
        return store

    def start(self, name: str, record: ArrayRecord, extent: Extent | None = None) -> Pending:
        """Begins to read an array, or one slice per dimension of it; what it returns waits for the values.

        Raises (here or when it is waited for):
          CheckpointError: as `check`, or the values can't be read.
        """
        store = self.check(name, record)
        return partial(self._wait, name, store[extent or ...].read(order="C"))

    def _wait(self, name: str, values: tensorstore.Future) -> np.ndarray:
        try:
            return values.result()
        except Exception as error:  # as above
            raise unreadable(self._folder, name, error) from error

    def _open(self, name: str) -> tensorstore.TensorStore:
        if name not in self._opened:
            info = type_handlers.ParamInfo(
                name=name,
                parent_dir=self._folder,
                is_ocdbt_checkpoint=True,
                ts_context=self._context,
            )
            spec = type_handlers.get_json_tspec_read(info, use_ocdbt=True)
            opened = tensorstore.open(tensorstore.Spec(spec), context=self._context)
            self._opened[name] = opened.result()
        return self._opened[name]


def unreadable(folder: Path, name: str, error: Exception) -> CheckpointError:
    """What a failure of the storage library means to a user."""
    return CheckpointError(
        f"{folder}: array {name} can't be read: {first_line(error)[:200]}; {AGAIN}"
    )
