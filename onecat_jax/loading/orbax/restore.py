"""Restores a converted checkpoint as sharded JAX arrays, with orbax and target shardings."""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint import type_handlers

from onecat_jax.errors import CheckpointError
from onecat_jax.loading.checkpoint import Checkpoint
from onecat_jax.loading.orbax.canonical import CanonicalArray
from onecat_jax.loading.orbax.checkpoint import OrbaxCheckpoint
from onecat_jax.loading.orbax.manifest import ARRAYS
from onecat_jax.loading.orbax.quiet import quiet
from onecat_jax.loading.orbax.reader import unreadable
from onecat_jax.loading.orbax.tensors import canonical_arrays
from onecat_jax.loading.orbax.tree import nested
from onecat_jax.loading.sources import find_sources
from onecat_jax.models import registry
from onecat_jax.models.pieces import NVFP4_GRAIN
from onecat_jax.models.slices import check_cut
from onecat_jax.sharding import Placement

_GROUP = 4 * 2**20  # bytes read together, which orbax holds twice for a moment


def restore_canonical(path: str | Path, placement: Placement) -> dict[str, Any]:
    """The canonical tree, every array split over the placement's devices as the engine splits it.

    Each device's part is read for that device; only arrays that every rank needs whole (norms, global scales) are replicated.

    Args:
      path: a folder that `onecat convert` wrote.
      placement: the devices, one per rank.

    Returns:
      nested dictionaries as stored, of jax.Array in the stored dtypes. Nothing else refers to them: they can be donated.

    Raises:
      CheckpointError: the folder can't be read.
      EngineError: a tensor can't be split over so many ranks.
    """
    checkpoint = Checkpoint.open(path)
    if not isinstance(checkpoint, OrbaxCheckpoint):
        raise CheckpointError(
            f"{checkpoint.root} isn't a converted checkpoint; run onecat convert on it first"
        )
    family = registry.resolve(checkpoint.config)
    sources = find_sources(checkpoint, family.tensor_specs(family.read_config(checkpoint.config)))
    for name, source in sources.items():
        if source.format == "nvfp4":
            check_cut(name, source.spec, placement.size, NVFP4_GRAIN)
    arrays = [a for found in canonical_arrays(checkpoint, sources).values() for a in found]
    restored: dict[str, jax.Array] = {}
    reader = _Reader(checkpoint.root / ARRAYS, placement)
    for array in arrays:  # orbax itself names no array when it fails
        checkpoint.check(array.name)
    for group in _groups(arrays):
        restored |= reader.restore(group)
    return nested(restored)


def _groups(arrays: Iterable[CanonicalArray]) -> Iterator[list[CanonicalArray]]:
    """Runs of arrays of up to `_GROUP` bytes together."""
    group: list[CanonicalArray] = []
    size = 0
    for array in arrays:
        nbytes = array.nbytes
        if group and size + nbytes > _GROUP:
            yield group
            group, size = [], 0
        group.append(array)
        size += nbytes
    yield group


class _Reader:
    """Orbax's reader of JAX arrays, without the tree around it, whose description it would read again for every group."""

    def __init__(self, folder: Path, placement: Placement) -> None:
        self._folder, self._placement = folder.absolute(), placement
        self._handler = type_handlers.ArrayHandler()
        self._context = type_handlers.get_ts_context(use_ocdbt=True)

    def restore(self, arrays: Sequence[CanonicalArray]) -> dict[str, jax.Array]:
        """Arrays by name, on their devices when this returns."""
        infos = [self._info(array) for array in arrays]
        args = [self._args(array) for array in arrays]
        try:
            with quiet(), ThreadPoolExecutor(1) as thread:  # the caller may be in an event loop
                reading = self._handler.deserialize(infos, args)
                found = deque(jax.block_until_ready(thread.submit(asyncio.run, reading).result()))
        except Exception as error:  # whatever fails inside orbax, the advice is one
            names = f"{arrays[0].name} to {arrays[-1].name}"
            raise unreadable(self._folder, names, error) from error
        # Taken out one by one: what is copied is let go before the next.
        return {array.name: self._owned(found.popleft()) for array in arrays}

    def _owned(self, array: jax.Array) -> jax.Array:
        """The array in memory that JAX can reuse when it is donated.

        On CPU, memory that orbax read into becomes the array where it is aligned; it stays numpy's.
        """
        if self._placement.devices[0].platform == "cpu":
            array = jax.device_put(array, array.sharding, may_alias=False)
        return jax.block_until_ready(array)

    def _info(self, array: CanonicalArray) -> type_handlers.ParamInfo:
        return type_handlers.ParamInfo(
            name=array.name,
            parent_dir=self._folder,
            is_ocdbt_checkpoint=True,
            ts_context=self._context,
        )

    def _args(self, array: CanonicalArray) -> type_handlers.ArrayRestoreArgs:
        return type_handlers.ArrayRestoreArgs(
            sharding=array.sharding(self._placement), global_shape=array.shape, dtype=array.dtype
        )
