"""The draft's passes: target rows into its windows, a block of masked tokens through its layers, scores of candidate pairs.
Pure; they run under jit, in loops and in shard_map.

The context is never refined by the draft's layers: a target
row gives each layer its keys and values once. A block is the last token and masks behind it; row j predicts the token at its
own position.
"""

from dataclasses import replace

import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.custom_calls.linear import Dense, Layer, linear, look_up, pick
from onecat_jax.custom_calls.paged_attention import AttentionRows
from onecat_jax.custom_calls.rows import LiveRows
from onecat_jax.models.dflash.attention import attention, context_heads, write_layers
from onecat_jax.models.dflash.layers import Rotary, mlp, plain_norm
from onecat_jax.models.dflash.options import DraftOptions
from onecat_jax.models.dflash.weights import DFlashParams
from onecat_jax.models.qwen3_5.layers import rotary_angles
from onecat_jax.state import DraftWindow


def write_context(
    params: DFlashParams,
    window: DraftWindow,
    taps: Array,
    start: Array,
    count: Array,
    slots: Array,
    options: DraftOptions,
) -> DraftWindow:
    """Takes rows of the target into the windows of their slots.

    Args:
      params: the draft.
      window: keys and values (donate them).
      taps: [A, B, T, E] float32 outputs of the tapped layers, in the order of target_layer_ids.
      start: int32 [B] absolute position of the first row.
      count: int32 [B] rows that are real, the first ones; of more than a ring holds only the last are projected and written.
      slots: int32 [B].
      options: static.
    """
    held = window.tokens
    if taps.shape[2] > held:
        skipped = jnp.maximum(count - held, 0)
        at = skipped[None, :, None, None] + jnp.arange(held)[:, None]
        taps = jnp.take_along_axis(taps, jnp.minimum(at, taps.shape[2] - 1), axis=2)
        start, count = start + skipped, count - skipped
    # Of rows that were rejected nothing is kept, and the linears pass over rows of zeros.
    real = jnp.arange(taps.shape[2]) < count[:, None]
    taps = jnp.where(real[..., None], taps, 0.0)
    rows, rotary = _places(window, start, count, slots, taps.shape[2], options)
    k, v = context_heads(params, taps, rotary, options)
    return replace(window, kv=write_layers(window.kv, k, v, rows, options))


def block(
    params: DFlashParams,
    window: DraftWindow,
    x: Array,
    position: Array,
    live: Array,
    slots: Array,
    options: DraftOptions,
) -> tuple[Array, DraftWindow]:
    """Runs one block per row of the batch through the draft's layers.

    Args:
      params: the draft.
      window: keys and values (donate them); those of the block are written behind the context, for later rows to overwrite.
      x: [B, Q, E] float32 embedded rows, Q = block_size; zero where nothing is live.
      position: int32 [B] absolute position of the first row: tokens in the window.
      live: bool [B] rows of the batch that are wanted.
      slots: int32 [B].
      options: static.

    Returns:
      [B, Q, E] float32 after the last norm, and the window.
    """
    count = jnp.where(live, x.shape[1], 0)
    rows, rotary = _places(window, position, count, slots, x.shape[1], options)
    kv = window.kv
    for number in range(options.config.num_hidden_layers):
        update, kv = attention(params.layers, number, x, kv, rows, rotary, options)
        x = x + update
        x = x + mlp(params.layers, Layer(number), x, options)
    return plain_norm(x, params.norm, options.eps), replace(window, kv=kv)


def _places(
    window: DraftWindow,
    start: Array,
    count: Array,
    slots: Array,
    width: int,
    options: DraftOptions,
) -> tuple[AttentionRows, Rotary]:
    """Where `width` rows from `start` lie, and their rotary angles."""
    config = options.config
    table = window.table(slots, options.max_len + config.block_size)
    rows = AttentionRows(table, start, count, LiveRows.of(count))
    at = start[:, None] + jnp.arange(width, dtype=jnp.int32)
    return rows, rotary_angles(at, config.rotary_dim, config.rope_theta)


def lattice(
    params: DFlashParams,
    hidden: Array,
    ids: Array,
    values: Array,
    anchor: Array,
    options: DraftOptions,
) -> Array:
    """Scores of every candidate behind every candidate before it (DFlash2): value + < A[before] * H, B[candidate] >.

    Args:
      params: a draft with a selector.
      hidden: [B, K, E] float32 rows of `block` that predict something, in order.
      ids: int32 [B, K, U] candidates of each row.
      values: [B, K, U] float32 their logits.
      anchor: int32 [B] the token before the first row.
      options: static.

    Returns:
      [B, K, U, U] float32, the candidate before first; all predecessors of the first row are the anchor.
    """
    selector = params.selector
    assert selector is not None, "a draft without a selector has no lattice"
    h = hidden.astype(options.compute_dtype)
    h = linear(
        h, selector.hidden_projection, Layer(0), out_dtype=jnp.float32, policy=options.policy
    )
    first = jnp.broadcast_to(anchor[:, None, None], ids[:, :1].shape)
    before = jnp.concatenate([first, ids[:, :-1]], axis=1)
    both = jnp.stack(
        [
            _own_rows(selector.predecessor, before, options),
            _own_rows(selector.successor, ids, options),
        ]
    )
    left, right = options.shards.sum(both)
    pairs = jnp.einsum(
        "bkpr,bkcr->bkpc", left * h[:, :, None], right, precision=lax.Precision.HIGHEST
    )
    return values[:, :, None] + pairs


def _own_rows(codebook: Dense, ids: Array, options: DraftOptions) -> Array:
    """Rows of a codebook as float32 [..., R]; zero for ids that another rank holds."""
    table = pick(codebook.weight, Layer(0))
    local = ids - options.shards.rank() * table.shape[0]
    mine = (local >= 0) & (local < table.shape[0])
    rows = look_up(table, jnp.clip(local, 0, table.shape[0] - 1), options.policy)
    return jnp.where(mine[..., None], rows, 0.0)
