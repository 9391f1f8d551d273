"""New states: their room and what they are stored in."""

from functools import partial

import jax
import jax.numpy as jnp

from onecat_jax.config import KV_DTYPES
from onecat_jax.errors import RequestError
from onecat_jax.functional.arguments import whole
from onecat_jax.functional.model import Model
from onecat_jax.functional.ranks import over_ranks, specs
from onecat_jax.functional.sequences import State, empty, taken
from onecat_jax.loading.memory_plan import KV_STORAGE


def kv_storage(name: str, model: Model) -> str:
    """The array dtype behind a kv_cache_dtype.

    Raises:
      RequestError: it is unknown, or a float8 one for a checkpoint that stores scales for it.
    """
    if name not in KV_DTYPES:
        raise RequestError(f"kv_cache_dtype is {name!r}; it must be one of {', '.join(KV_DTYPES)}.")
    if name in KV_STORAGE and model.cache_scales:
        raise RequestError(
            f"kv_cache_dtype is {name!r}, and the checkpoint stores scales for such a cache, which only LLM applies; use "
            "'auto', 'float16' or 'float32'."
        )
    return model.dtype if name == "auto" else KV_STORAGE.get(name, name)


def check_length(what: str, length: int, model: Model) -> None:
    """Raises RequestError for sequences that are longer than the model's limit."""
    if length > model.max_length:
        raise RequestError(
            f"{what} makes sequences of {length} tokens; the model's limit is {model.max_length}: shorten them."
        )


def new_state(model: Model, batch: int, max_length: int, *, kv_cache_dtype: str = "auto") -> State:
    """Empty sequences.

    Args:
      model: static.
      batch: rows B.
      max_length: tokens that each sequence has room for, prompts and generated ones; rounded up to a multiple of 16.
      kv_cache_dtype: storage of keys and values: "auto" (the compute dtype), "float32", "float16", "fp8_e4m3" or "fp8_e5m2".

    Raises:
      RequestError: max_length is beyond the model's limit, or kv_cache_dtype is unknown.
    """
    whole("batch", batch, 1)
    check_length("max_length", whole("max_length", max_length, 1), model)
    state = _new_state(model, batch, max_length, kv_storage(kv_cache_dtype, model))
    if model.placement.size > 1 or isinstance(state.length, jax.core.Tracer):
        return state
    # Bound to its device like the weights, and so like the states that come out of a step: else a function that continues
    # states would be compiled twice, for the first one and for all others.
    return jax.device_put(state, model.placement.devices[0])


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _new_state(model: Model, batch: int, max_length: int, kv_dtype: str) -> State:
    zeros = partial(empty, model, batch, max_length, kv_dtype)
    return over_ranks(model, zeros, out=specs(jax.eval_shape(zeros)))


def repeat(model: Model, state: State, n: int) -> State:
    """Every row n times, neighbours: a prompt that was prefilled once is then decoded n times with different seeds.

    Args:
      model: static.
      state: B rows. It isn't used up.
      n: static.

    Returns:
      B * n rows; row b of the state becomes rows b * n to b * n + n - 1.
    """
    return _repeat(model, whole("n", n, 1), state)


@partial(jax.jit, static_argnums=(0, 1))
def _repeat(model: Model, n: int, state: State) -> State:
    def run(state: State) -> State:
        return taken(state, jnp.repeat(jnp.arange(state.batch), n), model.least_rows)

    shape = jax.eval_shape(run, state)
    return over_ranks(model, run, state, out=specs(shape))
