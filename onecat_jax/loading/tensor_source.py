"""From an opened checkpoint to the source that a model's weights are built from."""

from collections.abc import Mapping

from onecat_jax.loading.checkpoint import Checkpoint
from onecat_jax.loading.checkpoint_tensors import CheckpointTensors
from onecat_jax.loading.formats import Source
from onecat_jax.loading.orbax.checkpoint import OrbaxCheckpoint
from onecat_jax.loading.orbax.tensors import OrbaxTensors, canonical_arrays
from onecat_jax.models.tensors import TensorSource


def tensor_source(
    checkpoint: Checkpoint, sources: Mapping[str, Source], ranks: int
) -> TensorSource:
    """The tensors of a checkpoint, cut for so many ranks.

    Raises:
      CheckpointError: a converted checkpoint's manifest lists other arrays than the model has. Bad scales are found when a
        tensor is asked for.
    """
    if isinstance(checkpoint, OrbaxCheckpoint):
        return OrbaxTensors(checkpoint, sources, canonical_arrays(checkpoint, sources), ranks)
    return CheckpointTensors(checkpoint, sources, ranks)
