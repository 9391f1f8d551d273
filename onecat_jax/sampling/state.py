"""Sampling settings of the rows of a batch, as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from onecat_jax.sampling_params import (
    MAX_LOGIT_BIAS,
    MAX_STOP_IDS,
    SamplingParams,
    check_vocabulary,
    effective_stop_ids,
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SamplingState:
    """One row per batch row. A greedy row uses penalties, biases and stop ids, and ignores the rest."""

    temperature: Array  # [B] float32, 0 = greedy
    top_k: Array  # [B] int32, 0 = off
    top_p: Array  # [B] float32, 1 = off
    min_p: Array  # [B] float32, 0 = off
    seed: Array  # [B, 2] uint32, low word first
    stop_ids: Array  # [B, MAX_STOP_IDS] int32, negative = unused
    min_position: Array  # [B] int32, stop ids aren't sampled at positions below it (min_tokens)
    prompt_length: Array  # [B] int32, tokens at smaller positions belong to the prompt
    presence_penalty: Array  # [B] float32, 0 = off
    frequency_penalty: Array  # [B] float32, 0 = off
    repetition_penalty: Array  # [B] float32, 1 = off
    bias_ids: Array  # [B, MAX_LOGIT_BIAS] int32, each id once, negative = unused
    bias_values: Array  # [B, MAX_LOGIT_BIAS] float32

    @property
    def biased(self) -> Array:
        """Rows [B] with a logit_bias."""
        return (self.bias_ids >= 0).any(axis=-1)

    @property
    def penalised(self) -> Array:
        """Rows [B] that need the token history."""
        additive = (self.presence_penalty != 0) | (self.frequency_penalty != 0)
        return additive | (self.repetition_penalty != 1)


def request_row(
    params: SamplingParams,
    eos_ids: Sequence[int],
    *,
    seed: int,
    prompt_length: int,
    vocab_size: int | None = None,
) -> SamplingState:
    """The row of one request: NumPy arrays without the B axis.

    Args:
      params: checked settings; its own seed isn't read.
      eos_ids: end-of-sequence ids of the model, left out of the stop ids if params.ignore_eos.
      seed: the 64-bit seed in use, params.seed or the engine's choice; taken modulo 2**64.
      prompt_length: tokens of the prompt; the first new token has this position.
      vocab_size: real ids of the model, if the biases are to be checked against it.
    Raises:
      RequestError: more than MAX_STOP_IDS stop ids, or a bias of a token that doesn't exist.
    """
    if vocab_size is not None:
        check_vocabulary(params, vocab_size)
    stops = effective_stop_ids(params, eos_ids)
    padded = np.full(MAX_STOP_IDS, -1, np.int32)
    padded[: len(stops)] = stops
    bits = seed & (2**64 - 1)
    fields: dict[str, Any] = {
        "temperature": _single(params.temperature),
        "top_k": np.int32(max(params.top_k, 0)),
        "top_p": np.float32(params.top_p),
        "min_p": np.float32(params.min_p),
        "seed": np.array([bits & 0xFFFFFFFF, bits >> 32], np.uint32),
        "stop_ids": padded,
        "min_position": np.int32(min(prompt_length + params.min_tokens, 2**31 - 1)),
        "prompt_length": np.int32(prompt_length),
        "presence_penalty": np.float32(params.presence_penalty),
        "frequency_penalty": np.float32(params.frequency_penalty),
        "repetition_penalty": _single(params.repetition_penalty),
        "bias_ids": np.full(MAX_LOGIT_BIAS, -1, np.int32),
        "bias_values": np.zeros(MAX_LOGIT_BIAS, np.float32),
    }
    for at, (token, bias) in enumerate(params.biases):
        fields["bias_ids"][at], fields["bias_values"][at] = token, bias
    return SamplingState(**fields)  # host arrays, which become device arrays at the jit boundary


def _single(value: float) -> np.float32:
    """A float32 that stays finite, and above 0 if the value is."""
    limits = np.finfo(np.float32)
    inside = min(max(value, float(limits.tiny)), float(limits.max))
    return np.float32(inside if value > 0 else 0.0)


def padding_row() -> SamplingState:
    """A greedy row that never stops, for unused batch rows."""
    return request_row(SamplingParams(temperature=0.0), (), seed=0, prompt_length=0)


def stack_rows(rows: Sequence[SamplingState | None], batch: int | None = None) -> SamplingState:
    """Rows of `request_row` to one state of `batch` rows (default: as many as given); None and the tail are padding."""
    filled = [row if row is not None else padding_row() for row in rows]
    filled += [padding_row()] * ((batch or len(filled)) - len(filled))
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *filled)


def set_row(state: SamplingState, index: int | Array, row: SamplingState) -> SamplingState:
    """The state with one row replaced. Jittable."""
    return jax.tree.map(lambda all_rows, one: all_rows.at[index].set(one), state, row)
