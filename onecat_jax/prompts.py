"""What users may pass as a prompt, turned into token ids."""

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onecat_jax.errors import RequestError, shown
from onecat_jax.text import Tokenizer


@dataclass(frozen=True)
class Prompt:
    """Checked token ids, and the text if the prompt came as one."""

    ids: tuple[int, ...]
    text: str | None


def as_prompt(
    prompt: str | Sequence[int] | Mapping[str, Any], tokenizer: Tokenizer, vocab_size: int
) -> Prompt:
    """A text, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}.

    Raises:
      RequestError: another form, an empty prompt, or ids from vocab_size on, which the model doesn't know.
    """
    if isinstance(prompt, Mapping):
        return _from_mapping(prompt, tokenizer, vocab_size)
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt)
        if not ids:
            raise RequestError("the prompt is empty; at least one character is needed.")
        if max(ids) >= vocab_size:
            raise RequestError(
                f"the prompt holds {tokenizer.token_text(max(ids))!r}, token {max(ids)} of the tokenizer; the model knows "
                f"{vocab_size} tokens: leave it out, or use the tokenizer of this model."
            )
        return Prompt(tuple(ids), prompt)
    return Prompt(_checked(prompt, vocab_size), None)


def as_list(prompts: Any) -> Sequence[Any]:
    """The prompts of a `generate` call: one prompt becomes a list of one.

    Raises:
      RequestError: neither a prompt nor a list of prompts.
    """
    if isinstance(prompts, str | Mapping):
        return [prompts]
    listed = _sequence(prompts)
    if listed is None:
        raise RequestError(
            f"prompts is {shown(prompts)}; a text, a list of token ids, or a list of prompts is needed."
        )
    single = len(listed) and isinstance(listed[0], numbers.Integral)
    return [listed] if single else listed


def _sequence(value: Any) -> Sequence[Any] | None:
    """Lists, tuples, ranges and arrays of any library; None for the rest, bytes (integers to Python) among it."""
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        return list(array) if array.ndim else None
    if isinstance(value, str | bytes | bytearray) or not isinstance(value, Sequence):
        return None
    return value


def _from_mapping(prompt: Mapping[str, Any], tokenizer: Tokenizer, vocab_size: int) -> Prompt:
    if "prompt_token_ids" in prompt:
        return Prompt(_checked(prompt["prompt_token_ids"], vocab_size), prompt.get("prompt"))
    if isinstance(prompt.get("prompt"), str):
        return as_prompt(prompt["prompt"], tokenizer, vocab_size)
    raise RequestError(
        f"the prompt is an object with {shown(list(prompt))}; 'prompt' (a text) or 'prompt_token_ids' is needed."
    )


def _checked(ids: Any, vocab_size: int) -> tuple[int, ...]:
    values = _sequence(ids)
    if values is None:
        raise RequestError(f"prompt_token_ids is {shown(ids)}; a list of token ids is needed.")
    if not values:
        raise RequestError("the prompt is empty; at least one token is needed.")
    for place, token in enumerate(values):
        whole = isinstance(token, numbers.Integral) and not isinstance(token, bool)
        if not whole or not 0 <= token < vocab_size:
            raise RequestError(
                f"prompt_token_ids[{place}] is {shown(token)}; an integer from 0 to {vocab_size - 1} is needed."
            )
    return tuple(int(token) for token in values)
