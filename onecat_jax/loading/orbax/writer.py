"""Writes arrays as an orbax checkpoint, a few at a time.

Orbax would copy every numpy array before it writes the first. A handler of our own, orbax's way to store other kinds of leaves,
reads each array when its turn comes, so that the host never holds more than a window of them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from orbax.checkpoint import type_handlers

from onecat_jax.errors import CheckpointError, first_line
from onecat_jax.loading.orbax.canonical import CanonicalArray
from onecat_jax.loading.orbax.checksum import checksum
from onecat_jax.loading.orbax.quiet import quiet
from onecat_jax.loading.orbax.tree import nested

_WINDOW = 128 * 2**20  # bytes in flight; a window is also one data file
Written = Callable[[int], None]  # bytes of an array that is on disk


@dataclass(frozen=True)
class Leaf:
    """An array that is read when it is written."""

    array: CanonicalArray
    read: Callable[[], np.ndarray]


def write_arrays(folder: Path, leaves: Mapping[str, Leaf], written: Written) -> dict[str, int]:
    """Stores arrays under their dotted names.

    Args:
      folder: of the orbax checkpoint, which must not exist.
      written: called after each array.

    Returns:
      the CRC-32 of every array's bytes, by name.
    """
    handler = _LeafHandler(written)
    # jax.Array is there so that orbax finds the store of array metadata that it asks for.
    registry = type_handlers.create_type_handler_registry(
        (Leaf, handler), (jax.Array, type_handlers.ArrayHandler())
    )
    # Not compressed: packed weights don't shrink, and a rank reads its part without decoding the rest.
    tree_handler = ocp.PyTreeCheckpointHandler(
        use_compression=False, type_handler_registry=registry
    )
    with quiet(), ocp.Checkpointer(tree_handler) as checkpointer:
        checkpointer.save(folder, args=ocp.args.PyTreeSave(nested(leaves)))
    return handler.checksums


class _LeafHandler(type_handlers.TypeHandler):
    """Stores leaves as the numpy arrays that they stand for."""

    def __init__(self, written: Written) -> None:
        self.checksums: dict[str, int] = {}
        self._written = written

    def typestr(self) -> str:
        return "np.ndarray"  # what reads them again

    async def metadata(self, infos: Sequence[Any]) -> Sequence[Any]:
        raise NotImplementedError("leaves are written only")

    async def deserialize(self, infos: Sequence[Any], args: Any = None) -> Sequence[Any]:
        raise NotImplementedError("leaves are written only")

    async def serialize(
        self, values: Sequence[Leaf], infos: Sequence[Any], args: Any = None
    ) -> Sequence[Any]:
        """Writes window after window; nothing is left to wait for."""
        window: list[tuple[Leaf, Any]] = []
        size = 0
        for leaf, info in zip(values, infos, strict=True):
            window.append((leaf, info))
            size += leaf.array.nbytes
            if size >= _WINDOW:
                await self._write_all(window)
                window, size = [], 0
        await self._write_all(window)
        return []

    async def _write_all(self, window: Sequence[tuple[Leaf, Any]]) -> None:
        """Waits for every one, so that nothing writes any more when the first failure is raised."""
        writes = (self._write(leaf, info) for leaf, info in window)
        for failure in await asyncio.gather(*writes, return_exceptions=True):
            if failure is not None:
                raise failure

    async def _write(self, leaf: Leaf, info: Any) -> None:
        array, values = leaf.array, leaf.read()
        await asyncio.gather(self._store(array, values, info), self._sum(array, values))
        self._written(array.nbytes)

    async def _sum(self, array: CanonicalArray, values: np.ndarray) -> None:
        self.checksums[array.name] = await asyncio.to_thread(checksum, values)

    async def _store(self, array: CanonicalArray, values: np.ndarray, info: Any) -> None:
        spec = type_handlers.get_json_tspec_write(
            info,
            use_ocdbt=True,
            global_shape=array.shape,
            local_shape=array.chunk_shape,
            dtype=array.dtype,
            process_index=0,
        )
        try:
            store = await tensorstore.open(
                tensorstore.Spec(spec),
                dtype=array.dtype.name,
                create=True,
                open=True,
                context=info.ts_context,
            )
            await store.write(values, can_reference_source_data_indefinitely=True)
        except Exception as error:  # whatever fails inside the storage library, the advice is one
            raise CheckpointError(
                f"{info.parent_dir}: array {array.name} can't be written: {first_line(error)[:300]}; "
                "is the disk full, or a quota reached?"
            ) from error
