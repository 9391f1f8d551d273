"""Checkpoints that are large enough for bytes to mean something, and what of them lies on one device."""

from collections.abc import Iterable
from dataclasses import replace

import jax
from checkpoints import SMALL

# Tens of megabytes; two key/value heads are repeated on four ranks; all sizes of parts are whole tiles of every layout.
LARGE = replace(
    SMALL,
    vocab_size=4096,
    hidden_size=512,
    intermediate_size=1536,
    layer_types=("linear_attention", "linear_attention", "linear_attention", "full_attention") * 2,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=64,
    linear_num_key_heads=4,
    linear_num_value_heads=8,
    linear_key_head_dim=64,
    linear_value_head_dim=64,
    mtp_num_hidden_layers=0,
)


def bytes_on(device: jax.Device, *trees: object) -> int:
    """Bytes of arrays on a device; one that is there twice (a tied head) counts once."""
    shards: Iterable[jax.Array] = (
        shard.data
        for leaf in {id(leaf): leaf for leaf in jax.tree.leaves(trees)}.values()
        for shard in leaf.addressable_shards
        if shard.device == device
    )
    return sum(shard.nbytes for shard in shards)
