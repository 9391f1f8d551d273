"""How the device parameters of tensor-parallel ranks lie on the mesh, from their structure alone."""

import jax
from jax.sharding import PartitionSpec
from jax.tree_util import GetAttrKey, KeyPath

from onecat_jax.models.dflash.weights import DFlashParams
from onecat_jax.sharding import TP

# Linears that aren't shared out are there once per rank all the same.
_REPLICATED = frozenset(
    {
        "input_norm",
        "post_norm",
        "q_norm",
        "k_norm",
        "hidden_norm",
        "norm",
        "o_bias",
        "base_kernel",
        "mask_embedding",
        "target_ids",
    }
)


def draft_specs(params: DFlashParams) -> DFlashParams:
    """PartitionSpecs in the place of arrays: the pieces of all ranks side by side on axis 0, or the same on every rank."""
    return jax.tree_util.tree_map_with_path(_spec, params)


def _spec(path: KeyPath, _: object) -> PartitionSpec:
    names = {key.name for key in path if isinstance(key, GetAttrKey)}
    return PartitionSpec() if names & _REPLICATED else PartitionSpec(TP)
