"""The forward pass: tokens in, final hidden rows and the new state out. Pure; runs under jit, in loops and in shard_map."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import Dense, Layer, linear
from onecat_jax.custom_calls.paged_attention import AttentionRows
from onecat_jax.custom_calls.rows import LiveRows
from onecat_jax.models.qwen3_5.attention import attention
from onecat_jax.models.qwen3_5.config import ModelConfig
from onecat_jax.models.qwen3_5.gdn import GDNRows, gdn_mixer
from onecat_jax.models.qwen3_5.layers import mlp, rms_norm, rotary_angles
from onecat_jax.models.qwen3_5.weights import Params, Segment
from onecat_jax.state import CacheState


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["tokens", "start", "count", "slots", "table"],
    meta_fields=[],
)
@dataclass(frozen=True)
class StepBatch:
    """New rows of a batch of sequences. An empty batch row has count 0, slot 0 and a table of zeros."""

    tokens: Array  # [B, T] int32
    start: Array  # [B] int32 tokens already in the state
    count: Array  # [B] int32 real rows, 0..T
    slots: Array  # [B] int32 GDN slot
    table: Array  # [B, P] int32 page ids


@dataclass(frozen=True)
class ForwardOptions:
    """Static choices of a forward pass."""

    config: ModelConfig
    dtype: str  # compute dtype of activations: "float32", "float16" or "bfloat16"
    policy: Policy


@dataclass(frozen=True)
class _Context:
    options: ForwardOptions
    batch: StepBatch
    rows: AttentionRows
    rotary: tuple[Array, Array]


def embed(weight: Dense, tokens: Array, real: Array) -> Array:
    """Rows of the embedding as float32 [B, T, E]; padding rows are zero and stay zero through every layer."""
    table = weight.weight[0] if isinstance(weight.weight, tuple) else weight.weight.reshape(-1, weight.k)
    return jnp.where(real[..., None], table[tokens].astype(jnp.float32), 0.0)


def _superblock(ctx: _Context, segment: Segment, index: Array | int, x: Array, state: CacheState):
    """Layers of one superblock in order; `index` counts superblocks of the segment."""
    options = ctx.options
    common = {"config": options.config, "dtype": jnp.dtype(options.dtype), "policy": options.policy}
    gdn_each = segment.pattern.count("linear_attention")
    attention_each = len(segment.pattern) - gdn_each
    gdn_seen = attention_seen = 0
    for position, kind in enumerate(segment.pattern):
        if kind == "linear_attention":
            layer = Layer(index, gdn_each, gdn_seen)
            cache_layer = segment.first_gdn + index * gdn_each + gdn_seen
            rows = GDNRows(
                cache_layer * state.gdn.slots + ctx.batch.slots, ctx.batch.start, ctx.batch.count, ctx.rows.live
            )
            update, gdn = gdn_mixer(segment.gdn, layer, x, state.gdn, rows, **common)
            state, gdn_seen = CacheState(state.kv, gdn), gdn_seen + 1
        else:
            layer = Layer(index, attention_each, attention_seen)
            cache_layer = segment.first_attention + index * attention_each + attention_seen
            update, kv = attention(
                segment.attention, layer, x, state.kv, cache_layer, ctx.rows, ctx.rotary, **common
            )
            state, attention_seen = CacheState(kv, state.gdn), attention_seen + 1
        x = x + update
        layer = Layer(index, len(segment.pattern), position)
        x = x + mlp(
            segment.mlp, layer, x, eps=options.config.rms_norm_eps,
            dtype=common["dtype"], policy=options.policy,
        )  # fmt: skip
    return x, state


def _segment(ctx: _Context, segment: Segment, x: Array, state: CacheState) -> tuple[Array, CacheState]:
    if segment.unrolled:
        for index in range(segment.repeats):
            x, state = _superblock(ctx, segment, index, x, state)
        return x, state
    return lax.fori_loop(
        0, segment.repeats, lambda i, carry: _superblock(ctx, segment, i, *carry), (x, state)
    )


def forward(
    params: Params, state: CacheState, batch: StepBatch, options: ForwardOptions
) -> tuple[Array, CacheState]:
    """Runs new rows through all layers.

    Args:
      params: device weights.
      state: caches (donate them).
      batch: the rows; sequences continue exactly where their state stands.
      options: static.

    Returns:
      hidden rows [B, T, E] float32 after the final norm, and the new state.
    """
    offset = jnp.arange(batch.tokens.shape[1], dtype=jnp.int32)
    real = offset < batch.count[:, None]
    config = options.config
    rotary = rotary_angles(batch.start[:, None] + offset, config.rotary_dim, config.rope_theta)
    rows = AttentionRows(batch.table, batch.start, batch.count, LiveRows.of(batch.count))
    ctx = _Context(options, batch, rows, rotary)
    x = embed(params.embed, batch.tokens, real)
    for segment in params.segments:
        x, state = _segment(ctx, segment, x, state)
    return rms_norm(x, params.norm, config.rms_norm_eps), state


def logits(params: Params, hidden: Array, options: ForwardOptions) -> Array:
    """Hidden rows [..., E] -> logits [..., V] float32 (padded vocabulary ids included)."""
    h = hidden.astype(options.dtype)
    return linear(h, params.head, Layer(0), out_dtype=jnp.float32, policy=options.policy)
