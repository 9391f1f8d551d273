"""Device parameters as plain frozen pytrees: what the forward pass gets.

Layers of one kind in a segment are stacked on a leading axis L. Linears that read the same input are fused along their output
rows (query+gate | key | value, qkv | z, b | a, gate | up).
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
from jax import Array

from onecat_jax.custom_calls.linear import Dense, Linear
from onecat_jax.models.qwen3_5.config import LayerKind


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GDNStack:
    """GDN mixers of a segment."""

    input_norm: Array  # [L, E] zero-centred
    in_proj: Linear  # [C + Hv*Dv, E] rows q | k | v | z
    gate_proj: Dense  # [2*Hv, E] rows b | a
    conv: Array  # [L, W, C] float32, oldest tap first
    a_log: Array  # [L, Hv] float32
    dt_bias: Array  # [L, Hv] float32
    out_norm: Array  # [L, Dv] multiplies directly
    out_proj: Linear  # [E, Hv*Dv]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AttentionStack:
    """Gated attention mixers of a segment."""

    input_norm: Array  # [L, E] zero-centred
    qkv_proj: Linear  # [2*H*D + 2*J*D, E] rows (query | gate per head) | key | value
    q_norm: Array  # [L, D] zero-centred
    k_norm: Array  # [L, D] zero-centred
    o_proj: Linear  # [E, H*D]
    cache_scales: Array | None = (
        None  # [L, 2] float32: what cached keys and values are multiplied by
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MLPStack:
    """Feed-forward blocks of all layers of a segment."""

    input_norm: Array  # [L, E] zero-centred
    gate_up_proj: Linear  # [2*F, E] rows gate | up
    down_proj: Linear  # [E, F]


# What runs as a device loop: superblocks (few, long iterations: right for a GPU, where an iteration has a cost of its own),
# also the layers of one kind inside them (the smallest program: right for a CPU), or nothing (plain JAX on CPU, where a loop
# copies what it slices out of a stack of dense weights).
Loops = Literal["none", "superblocks", "layers"]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["gdn", "attention", "mlp"],
    meta_fields=["pattern", "repeats", "first_gdn", "first_attention", "loops"],
)
@dataclass(frozen=True)
class Segment:
    """`repeats` superblocks of the same `pattern` of layers, whose weights have the same formats."""

    gdn: GDNStack | None
    attention: AttentionStack | None
    mlp: MLPStack
    pattern: tuple[LayerKind, ...]
    repeats: int
    first_gdn: int  # index of the segment's first GDN layer among all GDN layers of the model
    first_attention: int  # the same for attention layers
    loops: Loops

    @property
    def first_layer(self) -> int:
        """Index of the segment's first layer in the model."""
        return self.first_gdn + self.first_attention


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MTPParams:
    """The multi-token-prediction head: full-attention layers of the family on [embedding | hidden]. Embedding and head are the
    target's."""

    embed_norm: Array  # [E] zero-centred
    hidden_norm: Array  # [E] zero-centred
    fc: Linear  # [E, 2*E] columns of the embedding, then of the hidden row; whole on every rank
    attention: AttentionStack
    mlp: MLPStack
    norm: Array  # [E] zero-centred

    @property
    def layers(self) -> int:
        """How many layers the head has; its steps use them in turn."""
        return self.attention.input_norm.shape[0]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Params:
    """A whole model."""

    embed: Dense  # [V, E], L = 1
    segments: tuple[Segment, ...]
    norm: Array  # [E] zero-centred
    head: Linear  # [V, E], L = 1; the embedding itself when tied
    mtp: MTPParams | None = None  # built for speculative decoding alone
