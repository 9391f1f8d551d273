"""From an opened checkpoint to the source that a model's weights are built from."""

from collections.abc import Mapping

from onecat_jax.loading.checkpoint import Checkpoint
from onecat_jax.loading.formats import Source
from onecat_jax.loading.loader import host_tensors
from onecat_jax.loading.orbax.checkpoint import OrbaxCheckpoint
from onecat_jax.loading.orbax.tensors import OrbaxTensors, canonical_arrays
from onecat_jax.models.tensors import HostTensors, TensorSource


def tensor_source(
    checkpoint: Checkpoint, sources: Mapping[str, Source], ranks: int
) -> TensorSource:
    """The tensors of a checkpoint, cut for so many ranks.

    Raises:
      CheckpointError: a quantisation scale is bad, or a converted checkpoint's manifest lists other arrays than the model has.
    """
    if isinstance(checkpoint, OrbaxCheckpoint):
        return OrbaxTensors(checkpoint, sources, canonical_arrays(checkpoint, sources), ranks)
    specs = {name: source.spec for name, source in sources.items()}
    return HostTensors(host_tensors(checkpoint, sources), specs, ranks)
