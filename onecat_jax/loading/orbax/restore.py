"""Restores a converted checkpoint as sharded JAX arrays, with orbax and target shardings."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from onecat_jax.errors import CheckpointError
from onecat_jax.loading.checkpoint import Checkpoint
from onecat_jax.loading.orbax.canonical import CanonicalArray
from onecat_jax.loading.orbax.checkpoint import OrbaxCheckpoint
from onecat_jax.loading.orbax.manifest import AGAIN, ARRAYS
from onecat_jax.loading.orbax.quiet import quiet
from onecat_jax.loading.orbax.tensors import canonical_arrays
from onecat_jax.loading.orbax.tree import flattened, nested
from onecat_jax.loading.sources import find_sources
from onecat_jax.models import registry
from onecat_jax.sharding import Placement

_GROUP = (
    128 * 2**20
)  # bytes read together: what orbax holds on the host beside the arrays that are done


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
      EngineError: an array can't be split over so many ranks.
    """
    checkpoint = Checkpoint.open(path)
    if not isinstance(checkpoint, OrbaxCheckpoint):
        raise CheckpointError(
            f"{checkpoint.root} isn't a converted checkpoint; run onecat convert on it first"
        )
    family = registry.resolve(checkpoint.config)
    sources = find_sources(checkpoint, family.tensor_specs(family.read_config(checkpoint.config)))
    arrays = [a for found in canonical_arrays(checkpoint, sources).values() for a in found]
    restored: dict[str, jax.Array] = {}
    with quiet(), ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        for group in _groups(arrays):
            restored |= _restore(checkpointer, checkpoint.root / ARRAYS, group, placement)
    return nested(restored)


def _groups(arrays: Iterable[CanonicalArray]) -> Iterator[list[CanonicalArray]]:
    """Runs of arrays of up to `_GROUP` bytes together."""
    group: list[CanonicalArray] = []
    for array in arrays:
        if group and sum(a.nbytes for a in group) + array.nbytes > _GROUP:
            yield group
            group = []
        group.append(array)
    yield group


def _restore(
    checkpointer: Any, folder: Path, arrays: Sequence[CanonicalArray], placement: Placement
) -> dict[str, jax.Array]:
    wanted, args = {}, {}
    for array in arrays:
        sharding = array.sharding(placement)
        wanted[array.name] = jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
        args[array.name] = ocp.ArrayRestoreArgs(
            sharding=sharding, global_shape=array.shape, dtype=array.dtype
        )
    partial = ocp.args.PyTreeRestore(
        item=nested(wanted), restore_args=nested(args), partial_restore=True
    )
    try:
        tree = checkpointer.restore(folder.absolute(), args=partial)
    except Exception as error:  # whatever fails inside orbax, the advice is one
        names = f"{arrays[0].name} to {arrays[-1].name}"
        reason = (str(error) or type(error).__name__).strip().splitlines()[0][:300]
        raise CheckpointError(
            f"{folder}: arrays {names} can't be restored: {reason}; {AGAIN}"
        ) from error
    restored = dict(flattened(tree))
    if placement.devices[0].platform == "cpu":
        # Where it is aligned, the memory that orbax read into became the array: numpy's own, never reused when it is donated.
        restored = {n: jax.device_put(x, x.sharding, may_alias=False) for n, x in restored.items()}
    return jax.block_until_ready(restored)
