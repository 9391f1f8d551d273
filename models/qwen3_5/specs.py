"""How the device parameters of tensor-parallel ranks lie on the mesh, from their structure alone."""

import jax
from jax.sharding import PartitionSpec
from jax.tree_util import GetAttrKey, KeyPath

from onecat_jax.models.qwen3_5.weights import Params
from onecat_jax.sharding import TP

# Of the residual stream, which is the same on every rank, and of one head, whose weights all heads share.
_REPLICATED = frozenset({"input_norm", "q_norm", "k_norm", "out_norm", "norm", "cache_scales"}) | {
    "embed_norm",
    "hidden_norm",
}


def param_specs(params: Params) -> Params:
    """PartitionSpecs in the place of arrays: the pieces of all ranks side by side on axis 0, or the same on every rank.

    Only the structure is looked at, so tracers and shape descriptions do as well as arrays.
    """
    return jax.tree_util.tree_map_with_path(_spec, params)


def _spec(path: KeyPath, _: object) -> PartitionSpec:
    names = {key.name for key in path if isinstance(key, GetAttrKey)}
    return PartitionSpec() if names & _REPLICATED else PartitionSpec(TP)
