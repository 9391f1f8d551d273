"""What users may pass as a prompt, turned into token ids."""

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onecat_jax.errors import RequestError
from onecat_jax.text import Tokenizer


@dataclass(frozen=True)
class Prompt:
    """Checked token ids, and the text if the prompt came as one."""

    ids: tuple[int, ...]
    text: str | None


def as_prompt(prompt: str | Sequence[int] | Mapping[str, Any], tokenizer: Tokenizer) -> Prompt:
    """A text, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}.

    Raises:
      RequestError: another form, an empty prompt, or ids outside the vocabulary.
    """
    if isinstance(prompt, Mapping):
        return _from_mapping(prompt, tokenizer)
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt)
        if not ids:
            raise RequestError("the prompt is empty; at least one character is needed.")
        return Prompt(tuple(ids), prompt)
    return Prompt(_checked(prompt, tokenizer.vocab_size), None)


def _from_mapping(prompt: Mapping[str, Any], tokenizer: Tokenizer) -> Prompt:
    if "prompt_token_ids" in prompt:
        return Prompt(
            _checked(prompt["prompt_token_ids"], tokenizer.vocab_size), prompt.get("prompt")
        )
    if isinstance(prompt.get("prompt"), str):
        return as_prompt(prompt["prompt"], tokenizer)
    raise RequestError(
        f"the prompt is an object with {sorted(prompt)}; 'prompt' (a text) or 'prompt_token_ids' is needed."
    )


def _checked(ids: Any, vocab_size: int) -> tuple[int, ...]:
    if isinstance(ids, str | bytes | Mapping) or not hasattr(ids, "__iter__"):
        raise RequestError(f"prompt_token_ids is {ids!r}; a list of token ids is needed.")
    values = tuple(ids)
    if not values:
        raise RequestError("the prompt is empty; at least one token is needed.")
    for place, token in enumerate(values):
        whole = isinstance(token, numbers.Integral) and not isinstance(token, bool)
        if not whole or not 0 <= token < vocab_size:
            raise RequestError(
                f"prompt_token_ids[{place}] is {token!r}; an integer from 0 to {vocab_size - 1} is needed."
            )
    return tuple(int(token) for token in values)


def is_single(prompts: Any) -> bool:
    """Whether `generate` got one prompt rather than a list of prompts."""
    if isinstance(prompts, str | Mapping):
        return True
    return bool(len(prompts)) and isinstance(prompts[0], numbers.Integral)
