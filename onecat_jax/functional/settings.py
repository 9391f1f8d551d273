"""Sampling settings of a batch, from `SamplingParams`, from arrays, or from both."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from onecat_jax.errors import RequestError
from onecat_jax.functional.arguments import array_of, described, whole
from onecat_jax.functional.model import Model
from onecat_jax.sampling import SamplingState, request_row, stack_rows
from onecat_jax.sampling_params import SamplingParams

_FIELDS = {
    "temperature": jnp.float32,
    "top_k": jnp.int32,
    "top_p": jnp.float32,
    "min_p": jnp.float32,
    "min_tokens": jnp.int32,
    "presence_penalty": jnp.float32,
    "frequency_penalty": jnp.float32,
    "repetition_penalty": jnp.float32,
}
_WORDS = 2**32
_DEFAULT = SamplingParams()
_FAR = 2**31 - 1


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Sampling:
    """Settings of every row, for prompts of any length."""

    rows: SamplingState  # positions in it count from the end of the prompt

    @property
    def batch(self) -> int:
        """Rows B."""
        return self.rows.temperature.shape[0]

    def after(self, length: Array) -> SamplingState:
        """The settings of rows whose prompts have these lengths, int32 [B]."""
        earliest = length + jnp.minimum(self.rows.min_position, _FAR - length)
        return replace(self.rows, prompt_length=length, min_position=earliest)


def sampling(
    model: Model,
    batch: int,
    params: SamplingParams | Sequence[SamplingParams] = _DEFAULT,
    *,
    seed: Any = None,
    **arrays: Any,
) -> Sampling:
    """Settings of a batch. May run inside jit; arrays may be traced.

    Args:
      model: static; its end-of-sequence ids end a row unless params.ignore_eos.
      batch: rows B.
      params: of all rows, or one each. Read are temperature, top_p, top_k, min_p, seed, min_tokens, stop_token_ids,
        ignore_eos, the penalties and logit_bias. max_tokens is not: the number of new tokens is an argument of `generate`.
      seed: a `jax.random.key`, from which each row gets a seed of its own; or the rows' seeds, integers [B], or uint32
        [B, 2], low word first. Without it the seeds of params. A row's tokens follow from its seed as those of
        `LLM.generate` do.
      arrays: settings of the same names that replace those of params: temperature, top_k, top_p, min_p, min_tokens,
        presence_penalty, frequency_penalty, repetition_penalty; one value, or [B]. Their values aren't checked.

    Raises:
      RequestError: a setting that means nothing here (stop strings, n, logprobs), a bias of a token that doesn't exist, a wrong
        shape or dtype, or rows that are sampled without a seed.
    """
    whole("batch", batch, 1)
    each = _each(params, batch)
    words = None if seed is None else _seed_words(seed, batch)
    if words is None:
        _check_seeds(each, arrays)
    rows = [
        request_row(
            p, model.eos_ids, seed=p.seed or 0, prompt_length=0, vocab_size=model.vocab_size
        )
        for p in each
    ]
    state = stack_rows(rows)
    if words is not None:
        state = replace(state, seed=words)
    return Sampling(replace(state, **_replacements(arrays, batch)))


def _each(params: SamplingParams | Sequence[SamplingParams], batch: int) -> list[SamplingParams]:
    each = [params] * batch if isinstance(params, SamplingParams) else params
    if not isinstance(each, list | tuple) or not all(isinstance(p, SamplingParams) for p in each):
        raise RequestError(f"params is {each!r:.60}; a SamplingParams or a list of them is needed.")
    each = list(each)
    if len(each) != batch:
        raise RequestError(
            f"{len(each)} SamplingParams for {batch} rows; give one, or one for each row."
        )
    for one in each:
        _check_fields(one)
    return each


def _check_fields(params: SamplingParams) -> None:
    unusable = {
        "stop": bool(params.stop_strings),
        "n": params.n != 1,
        "logprobs": params.logprobs is not None,
        "prompt_logprobs": params.prompt_logprobs is not None,
    }
    advice = {
        "stop": "there is no text here: use stop_token_ids",
        "n": "repeat the prompt's row, each with a seed of its own",
        "logprobs": "the picked token's is always returned: leave it out",
        "prompt_logprobs": "leave it out and call functional.logprobs",
    }
    for name in (name for name, used in unusable.items() if used):
        raise RequestError(f"{name} is {getattr(params, name)!r}; {advice[name]}.")


def _check_seeds(params: list[SamplingParams], arrays: dict[str, Any]) -> None:
    lacking = [b for b, p in enumerate(params) if p.seed is None and p.temperature > 0]
    if "temperature" in arrays:  # perhaps traced
        lacking = [b for b, p in enumerate(params) if p.seed is None]
    if lacking:
        raise RequestError(
            f"row {lacking[0]} is sampled but has no seed ({len(lacking)} rows of {len(params)} haven't); nothing here picks "
            "one: pass seed=jax.random.key(...), seeds [batch], or SamplingParams(seed=...)."
        )


def _replacements(arrays: dict[str, Any], batch: int) -> dict[str, Array]:
    unknown = sorted(set(arrays) - set(_FIELDS))
    if unknown:
        raise RequestError(f"unknown setting {unknown[0]!r}; known: {', '.join(_FIELDS)}.")
    fields = {name: _column(name, value, batch) for name, value in arrays.items()}
    if "top_k" in fields:
        fields["top_k"] = jnp.maximum(fields["top_k"], 0)
    if "min_tokens" in fields:
        fields["min_position"] = fields.pop("min_tokens")
    return fields


def _column(name: str, value: Any, batch: int) -> Array:
    x, dtype = array_of(name, value), _FIELDS[name]
    if not jnp.can_cast(x.dtype, dtype, "same_kind") or x.shape not in ((), (batch,)):
        raise RequestError(
            f"{name} is {described(x)}; {jnp.dtype(dtype).name} [] or [{batch}] is needed."
        )
    return jnp.broadcast_to(x.astype(dtype), (batch,))


def _seed_words(seed: Any, batch: int) -> Array:
    """Seeds as uint32 [B, 2], low word first."""
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        if seed.shape == ():
            return jax.random.bits(seed, (batch, 2), jnp.uint32)
        raise RequestError(
            f"seed is {seed.dtype} {list(seed.shape)}; one key is needed, or integers [{batch}]."
        )
    words = _split(seed) if isinstance(seed, jax.Array) else _split_on_host(seed)
    if words is None or words.shape != (batch, 2):
        found = described(seed) if hasattr(seed, "dtype") else repr(seed)[:60]
        raise RequestError(
            f"seed is {found}; a jax.random.key, integers [{batch}] or uint32 [{batch}, 2] are needed: rows that shared a "
            "seed would share their randomness."
        )
    return words


def _split(seed: Array) -> Array | None:
    if not jnp.issubdtype(seed.dtype, jnp.integer) or seed.ndim == 0:
        return None
    if seed.ndim == 2:
        return seed.astype(jnp.uint32)
    wide = seed.dtype.itemsize == 8  # only with jax_enable_x64
    high = seed >> 32 if wide else jnp.where(seed < 0, -1, 0)
    return jnp.stack([seed.astype(jnp.uint32), high.astype(jnp.uint32)], axis=1)


def _split_on_host(seed: Any) -> Array | None:
    """As `_split`, for integers of 64 bits, which JAX would cut to 32."""
    try:
        whole_numbers = [operator.index(value) for value in np.ravel(np.array(seed, object))]
    except TypeError:
        return None
    shape = np.shape(seed)
    if len(shape) == 2:
        return jnp.asarray(np.reshape(np.array(whole_numbers) % _WORDS, shape).astype(np.uint32))
    if len(shape) != 1:
        return None
    words = [(value % _WORDS, (value >> 32) % _WORDS) for value in whole_numbers]
    return jnp.asarray(np.array(words, np.uint32))
