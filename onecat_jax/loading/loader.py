"""Turns a checkpoint into host tensors under canonical names: views of files where the layout allows, scales checked."""

from collections.abc import Mapping

from onecat_jax.loading.checkpoint import Checkpoint
from onecat_jax.loading.formats import Mismatch, Source
from onecat_jax.loading.sources import find_sources, refuse
from onecat_jax.models.spec import TensorSpecs
from onecat_jax.models.tensors import HostTensor


def load_tensors(checkpoint: Checkpoint, specs: TensorSpecs) -> dict[str, HostTensor]:
    """Host tensors by canonical name: linears as DenseTensor, NVFP4Tensor, FP8Tensor or INT4Tensor, the rest as arrays.

    Dense arrays have their file dtype. All are read-only views but for scales and what isn't stored row by row.

    Raises:
      CheckpointError: see `find_sources`; or a scale isn't one (`Source.read`).
    """
    return host_tensors(checkpoint, find_sources(checkpoint, specs))


def host_tensors(checkpoint: Checkpoint, sources: Mapping[str, Source]) -> dict[str, HostTensor]:
    """`load_tensors` where the sources are already found."""
    tensors: dict[str, HostTensor] = {}
    problems: list[str] = []
    for name, source in sources.items():
        try:
            tensors[name] = source.read(checkpoint.array)
        except Mismatch as mismatch:
            problems.append(mismatch.within(checkpoint.tensors))
    refuse(checkpoint, "hold bad scales", problems)
    return tensors
