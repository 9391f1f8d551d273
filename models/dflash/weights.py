"""Device parameters of a draft as plain frozen pytrees.

Layers are stacked on a leading axis L; their loop is unrolled, so dense weights stay separate arrays. Linears that read the
same input are fused along their output rows.
"""

from dataclasses import dataclass

import jax
from jax import Array

from onecat_jax.custom_calls.linear import Dense, Linear


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ConvStack:
    """Convolutions before (side 0) and after (side 1) a sublayer."""

    base_kernel: Array  # [L, 2, taps, E] float32
    kernel_projection: Linear  # [2 * taps * groups, E] rows side, tap, group


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerStack:
    """All layers. Norm weights multiply directly."""

    input_norm: Array  # [L, E]
    qkv_proj: Linear  # [H*D + 2*J*D, E] rows query | key | value
    qkv_bias: Array | None  # [L, H*D + 2*J*D]
    q_norm: Array  # [L, D]
    k_norm: Array  # [L, D]
    o_proj: Linear  # [E, H*D]
    o_bias: Array | None  # [L, E]
    post_norm: Array  # [L, E]
    gate_up_proj: Linear  # [2*F, E] rows gate | up
    down_proj: Linear  # [E, F]
    attention_conv: ConvStack | None
    mlp_conv: ConvStack | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Context:
    """What turns taps of the target into the keys and values of all layers."""

    fc: Linear  # [E / ranks, A*E]: ranks share out the rows and gather them
    hidden_norm: Array  # [E]
    kv_proj: Linear  # [L * 2*J*D, E], a copy: rows key | value of layer 0, then of layer 1, ...
    kv_bias: Array | None  # [1, L * 2*J*D]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Selector:
    """Scores of pairs of neighbouring candidates."""

    predecessor: Dense  # [V, R]
    successor: Dense  # [V, R]
    hidden_projection: Linear  # [R, E]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DFlashParams:
    """A whole draft. Embedding and head are the target's unless it has its own."""

    context: Context
    layers: LayerStack
    norm: Array  # [E]
    selector: Selector | None
    mask_embedding: Array | None  # [E] in the place of the mask token's row of the embedding
    head: Linear | None  # [draft ids, E]
    target_ids: Array | None  # [draft ids] int32, on every rank: the target's id of each draft id
