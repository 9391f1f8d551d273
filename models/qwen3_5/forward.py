"""The forward pass: tokens in, final hidden rows and the new state out. Pure; runs under jit, in loops and in shard_map."""

from dataclasses import dataclass, replace
from itertools import groupby

import jax
import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.custom_calls.gdn import GDNRows
from onecat_jax.custom_calls.linear import Dense, Layer, linear, pick
from onecat_jax.custom_calls.paged_attention import AttentionRows
from onecat_jax.custom_calls.rows import LiveRows
from onecat_jax.models.qwen3_5.attention import attention
from onecat_jax.models.qwen3_5.config import LayerKind
from onecat_jax.models.qwen3_5.gdn import gdn_mixer
from onecat_jax.models.qwen3_5.layers import mlp, rms_norm, rotary_angles
from onecat_jax.models.qwen3_5.options import ForwardOptions
from onecat_jax.models.qwen3_5.weights import Params, Segment
from onecat_jax.sharding import WHOLE, Shards
from onecat_jax.state import CacheState


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepBatch:
    """New rows of a batch of sequences. An empty batch row has count 0, slot 0 and a table of zeros."""

    tokens: Array  # [B, T] int32
    start: Array  # [B] int32 tokens already in the state
    count: Array  # [B] int32 real rows, 0..T
    slots: Array  # [B] int32 GDN slot
    table: Array  # [B, P] int32 page ids


@dataclass(frozen=True)
class _Context:
    options: ForwardOptions
    batch: StepBatch
    rows: AttentionRows
    rotary: tuple[Array, Array]


def embed(weight: Dense, tokens: Array, real: Array, shards: Shards = WHOLE) -> Array:
    """Rows of the embedding as float32 [B, T, E]; padding rows are zero and stay zero through every layer.

    Each rank looks up the ids of its slice of the vocabulary; the sum over ranks adds zeros to one row.
    """
    table = pick(weight.weight, Layer(0))
    ids = tokens - shards.rank() * table.shape[0]
    mine = real & (ids >= 0) & (ids < table.shape[0])
    rows = table[jnp.clip(ids, 0, table.shape[0] - 1)]
    return shards.sum(jnp.where(mine[..., None], rows.astype(jnp.float32), 0.0))


def _mix(
    ctx: _Context, segment: Segment, kind: LayerKind, layer: Layer, x: Array, state: CacheState
) -> tuple[Array, CacheState]:
    """The mixer of one layer; `layer` counts layers of its kind in the segment."""
    at = layer.number
    if kind == "linear_attention":
        assert segment.gdn is not None, "a segment with GDN layers holds their weights"
        slots = (segment.first_gdn + at) * state.gdn.slots + ctx.batch.slots
        rows = GDNRows(slots, ctx.batch.start, ctx.batch.count, ctx.rows.live)
        update, gdn = gdn_mixer(segment.gdn, layer, x, state.gdn, rows, ctx.options)
        return x + update, replace(state, gdn=gdn)
    assert segment.attention is not None, "a segment with attention layers holds their weights"
    cache_layer = segment.first_attention + at
    update, kv = attention(
        segment.attention, layer, x, state.kv, cache_layer, ctx.rows, ctx.rotary, ctx.options
    )
    return x + update, replace(state, kv=kv)


def _superblock(
    ctx: _Context, segment: Segment, index: Array | int, x: Array, state: CacheState
) -> tuple[Array, CacheState]:
    """Layers of one superblock in order; `index` counts superblocks of the segment."""
    pattern, seen = segment.pattern, {"linear_attention": 0, "full_attention": 0}
    first = 0
    for kind, run in groupby(pattern):
        length, each = len(list(run)), pattern.count(kind)
        layer, place = Layer(index, each, seen[kind]), Layer(index, len(pattern), first)
        x, state = _run(ctx, segment, kind, length, layer, place, x, state)
        seen[kind] += length
        first += length
    return x, state


def _run(
    ctx: _Context,
    segment: Segment,
    kind: LayerKind,
    length: int,
    layer: Layer,
    place: Layer,
    x: Array,
    state: CacheState,
) -> tuple[Array, CacheState]:
    """`length` neighbours of one kind: the first is `layer` of its kind and `place` of all layers."""

    def one(j: Array | int, carry: tuple[Array, CacheState]) -> tuple[Array, CacheState]:
        x, state = _mix(ctx, segment, kind, _shifted(layer, j), *carry)
        return x + mlp(segment.mlp, _shifted(place, j), x, ctx.options), state

    if segment.loops == "layers" and length > 1:
        return lax.fori_loop(0, length, one, (x, state))
    for j in range(length):
        x, state = one(j, (x, state))
    return x, state


def _shifted(layer: Layer, by: Array | int) -> Layer:
    if isinstance(by, int):
        return Layer(layer.index, layer.mul, layer.add + by)
    return Layer(layer.number + by)


def _segment(
    ctx: _Context, segment: Segment, x: Array, state: CacheState
) -> tuple[Array, CacheState]:
    def one(index: Array | int, carry: tuple[Array, CacheState]) -> tuple[Array, CacheState]:
        return _superblock(ctx, segment, index, *carry)

    if segment.loops != "none":
        return lax.fori_loop(0, segment.repeats, one, (x, state))
    for index in range(segment.repeats):
        x, state = one(index, (x, state))
    return x, state


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
    x = embed(params.embed, batch.tokens, real, options.shards)
    for segment in params.segments:
        x, state = _segment(ctx, segment, x, state)
    return rms_norm(x, params.norm, options.eps), state


def logits(params: Params, hidden: Array, options: ForwardOptions) -> Array:
    """Hidden rows [..., E] -> logits [..., V] float32, padded vocabulary ids included; under tensor parallelism each rank's
    slice of V."""
    h = hidden.astype(options.compute_dtype)
    return linear(h, params.head, Layer(0), out_dtype=jnp.float32, policy=options.policy)
