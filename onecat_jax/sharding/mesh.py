"""Where arrays lie: one device, or one device per tensor-parallel rank."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from onecat_jax.errors import EngineError
from onecat_jax.sharding.shards import TP, Shards

Tree = TypeVar("Tree")


@dataclass(frozen=True)
class Placement:
    """The devices of one engine, in rank order. Hashable: it can be part of a static argument.

    Arrays that are split carry the pieces of all ranks along one axis; inside shard_map each rank sees its own piece, with the
    shape it would have on a single device. With one rank there is no mesh and arrays lie on the device.
    """

    devices: tuple[jax.Device, ...]

    @staticmethod
    def of(ranks: int) -> "Placement":
        """The first `ranks` devices of the default platform.

        Raises:
          EngineError: there are fewer.
        """
        found = jax.devices()
        if ranks > len(found):
            kind = found[0].platform
            hint = (
                f"on CPU, start with XLA_FLAGS=--xla_force_host_platform_device_count={ranks} to try it on one machine"
                if kind == "cpu"
                else "lower it, or make more devices visible"
            )
            raise EngineError(
                f"tensor_parallel_size is {ranks}, but JAX sees {len(found)} {kind} device{'s' * (len(found) > 1)}: {hint}."
            )
        return Placement(tuple(found[:ranks]))

    @property
    def size(self) -> int:
        return len(self.devices)

    @property
    def shards(self) -> Shards:
        return Shards(self.size)

    @cached_property
    def mesh(self) -> Mesh:
        return Mesh(np.array(self.devices), (TP,))

    def local_ranks(self) -> Iterator[tuple[int, jax.Device]]:
        """Ranks whose devices belong to this process."""
        process = jax.process_index()
        return ((r, d) for r, d in enumerate(self.devices) if d.process_index == process)

    def sharding(self, spec: PartitionSpec) -> jax.sharding.Sharding:
        """Of an array with this spec."""
        if self.size == 1:
            return jax.sharding.SingleDeviceSharding(self.devices[0])
        return NamedSharding(self.mesh, spec)

    def replicate(self, x: Any) -> Array:
        """The same host array on every device."""
        return jax.device_put(x, self.sharding(PartitionSpec()))

    def assemble(self, pieces: Sequence[Tree], axis: int = 0) -> Tree:
        """Pytrees of single-device arrays, one per local rank in order -> one pytree, pieces side by side along `axis`."""
        if self.size == 1:
            return pieces[0]
        return jax.tree.map(lambda *arrays: self._assemble_one(arrays, axis), *pieces)

    def _assemble_one(self, arrays: Sequence[Array], axis: int) -> Array:
        shape = list(arrays[0].shape)
        shape[axis] *= self.size
        spec = PartitionSpec(*[None] * axis, TP)
        return jax.make_array_from_single_device_arrays(
            tuple(shape), NamedSharding(self.mesh, spec), list(arrays)
        )

    def shard_map(self, function: Callable, in_specs: Any, out_specs: Any) -> Callable:
        """The function once per rank, on local pieces; the function itself with one rank."""
        if self.size == 1:
            return function
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )
