"""The multi-token-prediction head: what follows two tokens ahead, from a hidden row and the token after it."""

import jax.numpy as jnp
from jax import Array

from onecat_jax.custom_calls.linear import Layer, linear
from onecat_jax.custom_calls.paged_attention import AttentionRows
from onecat_jax.models.qwen3_5.attention import attention
from onecat_jax.models.qwen3_5.layers import mlp, rms_norm
from onecat_jax.models.qwen3_5.options import ForwardOptions
from onecat_jax.models.qwen3_5.weights import MTPParams
from onecat_jax.state import PagedKV


def mtp_rows(
    head: MTPParams,
    embedded: Array,
    hidden: Array,
    kv: PagedKV,
    rows: AttentionRows,
    rotary: tuple[Array, Array],
    options: ForwardOptions,
    turn: int = 0,
) -> tuple[Array, PagedKV]:
    """Runs rows through the head: z = fc([norm(embedded) | norm(hidden)]), one decoder layer, norm.

    The row at position P takes the embedding of the token at P + 1, and its output's logits are about the token at P + 2.

    Args:
      head: weights.
      embedded: [B, T, E] float32 embedding of the token after each row, zero for padding rows.
      hidden: [B, T, E] float32 what the target gave for the row after its final norm; or what the head gave for the row before.
      kv: cache; the head's layers follow those of the model.
      rows: positions of the rows and their pages.
      rotary: cos and sin [B, T, R/2] of the positions.
      options: static.
      turn: which of the head's layers gives the output (static). The others only write their keys and values, so that no layer
        has holes in what it attends to.

    Returns:
      [B, T, E] float32 after the head's norm, zero for padding rows; and the cache.
    """
    token = rms_norm(embedded, head.embed_norm, options.eps)
    past = rms_norm(hidden, head.hidden_norm, options.eps)
    both = jnp.concatenate([token, past], axis=-1).astype(options.compute_dtype)
    z = linear(both, head.fc, Layer(0), out_dtype=jnp.float32, policy=options.policy)
    out = z
    for index in range(head.layers):
        layer, place = Layer(index), options.config.num_full_layers + index
        update, kv = attention(head.attention, layer, z, kv, place, rows, rotary, options)
        if index == turn:
            x = z + update
            out = x + mlp(head.mlp, layer, x, options)
    return rms_norm(out, head.norm, options.eps), kv
