"""The engine as pure functions: for rollouts, evaluation and whatever else runs inside your own `jax.jit`.

    from onecat_jax import SamplingParams, functional

    model, params = functional.load("tiny")
    settings = functional.sampling(model, batch, SamplingParams(temperature=0.8), seed=jax.random.key(0))
    out = functional.generate(model, params, tokens, lengths, settings, max_new_tokens=32)

A `Model` is static and hashable: close over it or mark it static. Everything else is a pytree of arrays, and no function keeps
anything between calls: what continues later is in the `State` that goes in and comes out. Calls may be made outside jit too;
each function is compiled once per model and shapes.

Rows are independent: a row's result doesn't depend on its neighbours, on the batch size or on the padding behind it. Values
that only exist at run time aren't checked: a length is read as one between 0 and the width of its array, and a token id
outside the vocabulary as a row of zeros.

Two things don't work here. Reverse-mode gradients: this is inference, and quantised weights have none; compute gradients in the
trainer and bring its weights over with `build_params`. Batches sharded over devices: a custom call gets all of its operands on
each device, so run one process (or one call) per data-parallel replica; tensor parallelism is `load(tensor_parallel_size=)`.
"""

from onecat_jax.functional.feeding import prefill
from onecat_jax.functional.model import Model, load
from onecat_jax.functional.rollout import (
    EMPTY,
    LENGTH,
    OVERFLOW,
    STOPPED,
    UNHEALTHY,
    Generated,
    decode,
    generate,
    joined,
)
from onecat_jax.functional.scoring import logprobs
from onecat_jax.functional.sequences import State
from onecat_jax.functional.settings import Sampling, sampling
from onecat_jax.functional.storage import new_state, repeat
from onecat_jax.functional.weights import build_params
from onecat_jax.models.qwen3_5 import Params

__all__ = [
    "EMPTY",
    "LENGTH",
    "OVERFLOW",
    "STOPPED",
    "UNHEALTHY",
    "Generated",
    "Model",
    "Params",
    "Sampling",
    "State",
    "build_params",
    "decode",
    "generate",
    "joined",
    "load",
    "logprobs",
    "new_state",
    "prefill",
    "repeat",
    "sampling",
]
