"""Chat messages in the form that templates expect.

Clients send OpenAI's form, where the arguments of a tool call are JSON text; templates iterate over them. Reasoning of earlier
turns comes as `reasoning_content` or `reasoning`; a template may read either.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from onecat_jax.errors import RequestError

_REASONING = ("reasoning_content", "reasoning")


def normalise_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Fresh copies of the messages, the caller's stay as they are.

    Raises:
      RequestError: no messages, or one that isn't a mapping with a role; index and type are named.
    """
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise RequestError(
            f"messages must be a list of {{'role', 'content'}}, got {type(messages).__name__}."
        )
    if not messages:
        raise RequestError("messages is empty; at least one message is needed.")
    return [_message(index, message) for index, message in enumerate(messages)]


def normalise_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Copies of the tool descriptions; None if there are none.

    Raises:
      RequestError: a tool that isn't a mapping.
    """
    if not tools:
        return None
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        raise RequestError(f"tools must be a list of mappings, got {type(tools).__name__}.")
    for index, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise RequestError(f"tools[{index}] must be a mapping, got {type(tool).__name__}.")
    return [dict(tool) for tool in tools]


def _message(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"messages[{index}] must be a mapping, got {type(message).__name__}.")
    role = message.get("role")
    if not isinstance(role, str):
        raise RequestError(f"messages[{index}] needs a role (text), got {role!r}.")
    result = dict(message)
    result.setdefault("content", "")
    _check_content(index, result)
    if result.get("tool_calls"):
        if not isinstance(result["tool_calls"], list | tuple):
            raise RequestError(
                f"messages[{index}].tool_calls is a {type(result['tool_calls']).__name__}; a list is needed."
            )
        result["tool_calls"] = [_tool_call(index, call) for call in result["tool_calls"]]
    reasoning = next((result[key] for key in _REASONING if result.get(key) is not None), None)
    if reasoning is not None:
        result.update(dict.fromkeys(_REASONING, reasoning))
    return result


def _check_content(index: int, message: dict[str, Any]) -> None:
    content = message["content"]
    if content is None:
        message["content"] = ""
    elif not isinstance(content, (str, list, tuple)):
        raise RequestError(
            f"messages[{index}].content must be text or a list of parts, got {type(content).__name__}."
        )
    elif not isinstance(content, str):
        for place, part in enumerate(content):
            _check_part(f"messages[{index}].content[{place}]", part)


def _check_part(name: str, part: Any) -> None:
    """Templates pass over parts that they don't know, and the model would answer without having seen them."""
    if not isinstance(part, Mapping):
        raise RequestError(f"{name} must be a mapping, got {type(part).__name__}.")
    if part.get("type", "text") != "text" or not isinstance(part.get("text"), str):
        raise RequestError(
            f"{name} is of type {part.get('type')!r}; only parts {{'type': 'text', 'text': ...}} are implemented."
        )


def _tool_call(index: int, call: Any) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise RequestError(
            f"messages[{index}].tool_calls holds a {type(call).__name__}; mappings are needed."
        )
    result = dict(call)
    if isinstance(result.get("function"), Mapping):
        result["function"] = _with_parsed_arguments(result["function"])
        return result
    return _with_parsed_arguments(result)


def _with_parsed_arguments(function: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as a mapping; text that is no JSON object is kept whole under the key "arguments"."""
    result = dict(function)
    arguments = result.get("arguments")
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments) if arguments.strip() else {}
        except ValueError:
            parsed = None
        result["arguments"] = parsed if isinstance(parsed, dict) else {"arguments": arguments}
    return result
