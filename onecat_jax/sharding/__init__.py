"""How a model is split over devices: logical axes of tensors, mesh axes, and what a program sees of them inside shard_map."""

from onecat_jax.sharding.mesh import Placement
from onecat_jax.sharding.rules import RULES, Rules, Split, local_counts
from onecat_jax.sharding.shards import TP, WHOLE, Shards

__all__ = [
    "RULES",
    "TP",
    "WHOLE",
    "Placement",
    "Rules",
    "Shards",
    "Split",
    "local_counts",
]
