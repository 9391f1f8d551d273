"""What earlier tokens and the request itself do to the logits: penalties and logit_bias, before everything else.

As in vLLM, with counts over the prompt and the tokens generated so far:

    repetition    x / r where x > 0, else x * r     token in the prompt or generated
    frequency     x - f * (times generated)
    presence      x - p                             token generated

in this order, then x + bias. Greedy rows are no exception. Neutral values leave a row's bits as they are.
"""

import jax.numpy as jnp
from jax import Array

from onecat_jax.sampling.counts import TokenCounts
from onecat_jax.sampling.state import SamplingState
from onecat_jax.sampling.vocabulary import Vocabulary


def apply_penalties(logits: Array, state: SamplingState, history: TokenCounts) -> Array:
    """Float32 logits [B, V] after the three penalties; history holds the same slice of the vocabulary."""
    generated, seen = history.rows()
    factor = jnp.where(seen, state.repetition_penalty[:, None], 1.0)
    x = jnp.where(logits > 0, logits / factor, logits * factor)
    x = x - state.frequency_penalty[:, None] * generated.astype(jnp.float32)
    return x - jnp.where(generated > 0, state.presence_penalty[:, None], 0.0)


def apply_bias(logits: Array, state: SamplingState, vocabulary: Vocabulary) -> Array:
    """Float32 logits [B, V] plus the biases of each row."""
    rows = jnp.arange(logits.shape[0])[:, None]
    columns = vocabulary.columns(logits, state.bias_ids)
    return logits.at[rows, columns].add(state.bias_values, mode="drop")
