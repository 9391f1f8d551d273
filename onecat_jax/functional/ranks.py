"""One function on every tensor-parallel rank: which of its arguments are pieces and which are whole."""

from collections.abc import Callable
from typing import Any

from jax.sharding import PartitionSpec

from onecat_jax.functional.model import Model
from onecat_jax.functional.sequences import State
from onecat_jax.models.qwen3_5 import Params
from onecat_jax.models.qwen3_5.specs import param_specs
from onecat_jax.sharding import TP

WHOLE = PartitionSpec()


def over_ranks(model: Model, function: Callable, *args: Any, out: Any = WHOLE) -> Any:
    """function(*args), inside one shard_map if the model lies on several devices.

    Args:
      model: static.
      function: of one rank's pieces of weights and states; everything else is the same on all ranks.
      args: its arguments.
      out: specs of the result, see `specs`.
    """
    if model.placement.size == 1:
        return function(*args)
    in_specs = tuple(specs(arg) for arg in args)
    return model.placement.shard_map(function, in_specs=in_specs, out_specs=out)(*args)


def specs(x: Any) -> Any:
    """How an argument lies on the ranks."""
    if isinstance(x, State):
        whole: Any = WHOLE  # specs in the place of arrays
        return State(x.caches.specs(TP), whole, whole, whole, whole)
    if isinstance(x, Params):
        return param_specs(x)
    return WHOLE
