"""The forward pass: tokens in, final hidden rows and the new state out. Pure; runs under jit, in loops and in shard_map.

Speculative decoding verifies rows that may turn out not to belong to the sequence: then the recurrent states stay as they are,
the rows' inputs are kept, and `commit_gdn` replays those that were accepted. Keys and values need no such care: what lies
beyond a sequence's length is never read.
"""

from dataclasses import dataclass, replace
from itertools import groupby

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from onecat_jax.custom_calls import gdn
from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.gdn import GDNRows, KeptRows
from onecat_jax.custom_calls.linear import Dense, Layer, linear, look_up, pick
from onecat_jax.custom_calls.paged_attention import AttentionRows
from onecat_jax.custom_calls.rows import LiveRows, put_row
from onecat_jax.models.qwen3_5.attention import attention
from onecat_jax.models.qwen3_5.config import LayerKind
from onecat_jax.models.qwen3_5.gdn import gdn_mixer, gdn_verifier, weights_of
from onecat_jax.models.qwen3_5.layers import mlp, rms_norm, rotary_angles
from onecat_jax.models.qwen3_5.options import ForwardOptions
from onecat_jax.models.qwen3_5.weights import Params, Segment
from onecat_jax.sharding import WHOLE, Shards
from onecat_jax.state import CacheState, GDNCache


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
class Capture:
    """What else a pass gives back. Static."""

    taps: tuple[int, ...] = ()  # layers whose output (the residual stream after them) is wanted
    rollback: bool = False  # leave GDN states alone and keep what a commit needs


NOTHING = Capture()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Passed:
    """What a pass gives back."""

    hidden: Array  # [B, T, E] float32 after the final norm
    state: CacheState
    taps: Array | None  # [A, B, T, E] float32 in the order asked for
    kept: KeptRows | None  # of all GDN layers


@dataclass(frozen=True)
class _Context:
    options: ForwardOptions
    batch: StepBatch
    rows: AttentionRows
    rotary: tuple[Array, Array]
    capture: Capture


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Stream:
    """What flows from layer to layer."""

    x: Array  # [B, T, E] float32 residual
    state: CacheState
    taps: Array | None  # [A + 1, B, T, E]; the last place takes the layers that aren't tapped
    kept: KeptRows | None


def embed(
    weight: Dense,
    tokens: Array,
    real: Array,
    shards: Shards = WHOLE,
    policy: Policy = Policy(),
) -> Array:
    """Rows of the embedding as float32 [B, T, E]; padding rows are zero and stay zero through every layer.

    Each rank looks up the ids of its slice of the vocabulary; the sum over ranks adds zeros to one row.
    """
    table = pick(weight.weight, Layer(0))
    ids = tokens - shards.rank() * table.shape[0]
    mine = real & (ids >= 0) & (ids < table.shape[0])
    rows = look_up(table, jnp.clip(ids, 0, table.shape[0] - 1), policy)
    return shards.sum(jnp.where(mine[..., None], rows, 0.0))


def _mix(
    ctx: _Context, segment: Segment, kind: LayerKind, layer: Layer, stream: _Stream
) -> _Stream:
    """The mixer of one layer; `layer` counts layers of its kind in the segment."""
    if kind == "linear_attention":
        return _mix_gdn(ctx, segment, layer, stream)
    assert segment.attention is not None, "a segment with attention layers holds their weights"
    cache_layer = segment.first_attention + layer.number
    update, kv = attention(
        segment.attention,
        layer,
        stream.x,
        stream.state.kv,
        cache_layer,
        ctx.rows,
        ctx.rotary,
        ctx.options,
    )
    return replace(stream, x=stream.x + update, state=replace(stream.state, kv=kv))


def _mix_gdn(ctx: _Context, segment: Segment, layer: Layer, stream: _Stream) -> _Stream:
    assert segment.gdn is not None, "a segment with GDN layers holds their weights"
    x, state, place = stream.x, stream.state, segment.first_gdn + layer.number
    slots = place * state.gdn.slots + ctx.batch.slots
    rows = GDNRows(slots, ctx.batch.start, ctx.batch.count, ctx.rows.live)
    if stream.kept is not None:
        update, kept = gdn_verifier(
            segment.gdn, layer, x, state.gdn, rows, stream.kept, place, ctx.options
        )
        return replace(stream, x=x + update, kept=kept)
    update, cache = gdn_mixer(segment.gdn, layer, x, state.gdn, rows, ctx.options)
    return replace(stream, x=x + update, state=replace(state, gdn=cache))


def _tap(ctx: _Context, layer: Array | int, stream: _Stream) -> _Stream:
    """Keeps the residual after a layer of the model if it is tapped."""
    taps = ctx.capture.taps
    if stream.taps is None or (isinstance(layer, int) and layer not in taps):
        return stream
    places = np.full(ctx.options.config.num_hidden_layers, len(taps), np.int32)
    places[list(taps)] = np.arange(len(taps))
    place = int(places[layer]) if isinstance(layer, int) else jnp.asarray(places)[layer]
    return replace(stream, taps=put_row(stream.taps, stream.x, place))


def _superblock(ctx: _Context, segment: Segment, index: Array | int, stream: _Stream) -> _Stream:
    """Layers of one superblock in order; `index` counts superblocks of the segment."""
    pattern, seen = segment.pattern, {"linear_attention": 0, "full_attention": 0}
    first = 0
    for kind, run in groupby(pattern):
        length, each = len(list(run)), pattern.count(kind)
        layer, place = Layer(index, each, seen[kind]), Layer(index, len(pattern), first)
        stream = _run(ctx, segment, kind, length, layer, place, stream)
        seen[kind] += length
        first += length
    return stream


def _run(
    ctx: _Context,
    segment: Segment,
    kind: LayerKind,
    length: int,
    layer: Layer,
    place: Layer,
    stream: _Stream,
) -> _Stream:
    """`length` neighbours of one kind: the first is `layer` of its kind and `place` of all layers."""

    def one(j: Array | int, stream: _Stream) -> _Stream:
        at = _shifted(place, j)
        stream = _mix(ctx, segment, kind, _shifted(layer, j), stream)
        stream = replace(stream, x=stream.x + mlp(segment.mlp, at, stream.x, ctx.options))
        return _tap(ctx, segment.first_layer + at.number, stream)

    if segment.loops == "layers" and length > 1:
        return lax.fori_loop(0, length, one, stream)
    for j in range(length):
        stream = one(j, stream)
    return stream


def _shifted(layer: Layer, by: Array | int) -> Layer:
    if isinstance(by, int):
        return Layer(layer.index, layer.mul, layer.add + by)
    return Layer(layer.number + by)


def _segment(ctx: _Context, segment: Segment, stream: _Stream) -> _Stream:
    def one(index: Array | int, stream: _Stream) -> _Stream:
        return _superblock(ctx, segment, index, stream)

    if segment.loops != "none":
        return lax.fori_loop(0, segment.repeats, one, stream)
    for index in range(segment.repeats):
        stream = one(index, stream)
    return stream


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
    passed = forward_with(params, state, batch, options, NOTHING)
    return passed.hidden, passed.state


def forward_with(
    params: Params,
    state: CacheState,
    batch: StepBatch,
    options: ForwardOptions,
    capture: Capture,
) -> Passed:
    """`forward`, which also gives back what `capture` asks for. Arguments as there."""
    offset = jnp.arange(batch.tokens.shape[1], dtype=jnp.int32)
    real = offset < batch.count[:, None]
    config = options.config
    rotary = rotary_angles(batch.start[:, None] + offset, config.rotary_dim, config.rope_theta)
    rows = AttentionRows(batch.table, batch.start, batch.count, LiveRows.of(batch.count))
    ctx = _Context(options, batch, rows, rotary, capture)
    x = embed(params.embed, batch.tokens, real, options.shards, options.policy)
    stream = _Stream(x, state, _no_taps(x, capture), _nothing_kept(state, batch, capture))
    for segment in params.segments:
        stream = _segment(ctx, segment, stream)
    hidden = rms_norm(stream.x, params.norm, options.eps)
    taps = None if stream.taps is None else stream.taps[:-1]
    return Passed(hidden, stream.state, taps, stream.kept)


def _no_taps(x: Array, capture: Capture) -> Array | None:
    return jnp.zeros((len(capture.taps) + 1, *x.shape), x.dtype) if capture.taps else None


def _nothing_kept(state: CacheState, batch: StepBatch, capture: Capture) -> KeptRows | None:
    if not capture.rollback:
        return None
    gdn = state.gdn
    lead = (gdn.state.shape[0] // gdn.slots, *batch.tokens.shape)
    qkv = jnp.zeros((*lead, gdn.window.shape[-1]), gdn.window.dtype)
    return KeptRows(qkv, jnp.zeros((*lead, 2 * gdn.state.shape[1]), jnp.float32))


def commit_gdn(
    params: Params,
    cache: GDNCache,
    kept: KeptRows,
    slots: Array,
    start: Array,
    count: Array,
    options: ForwardOptions,
) -> GDNCache:
    """Replays the first rows of a pass with `rollback`: the states become those after `count` [B] rows.

    Args:
      params: device weights.
      cache: as it was in that pass; donate it.
      kept: what the pass kept.
      slots, start: int32 [B] as in that pass.
      count: int32 [B], 0 to the rows that the pass had; 0 leaves a slot alone.
      options: static.
    """
    state, window = cache.state, cache.window
    rows = GDNRows(slots, start, count, LiveRows.of(count))
    for segment in params.segments:
        if segment.gdn is not None:
            state, window = gdn.commit(
                kept,
                state,
                window,
                rows,
                weights_of(segment.gdn),
                first_layer=segment.first_gdn,
                slots=cache.slots,
                policy=options.policy,
            )
    return GDNCache(state, window, cache.slots)


def logits(params: Params, hidden: Array, options: ForwardOptions) -> Array:
    """Hidden rows [..., E] -> logits [..., V] float32, padded vocabulary ids included; under tensor parallelism each rank's
    slice of V."""
    h = hidden.astype(options.compute_dtype)
    return linear(h, params.head, Layer(0), out_dtype=jnp.float32, policy=options.policy)
