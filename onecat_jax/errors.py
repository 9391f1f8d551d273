"""Errors that a user can act on.

Every message says what was found, what is needed and what to do. The command line turns them into one sentence and exit
code 2; a server turns them into an HTTP 4xx or 5xx. Anything else that escapes is a bug of ours.
"""

from typing import Any


class OnecatError(Exception):
    """Base of all errors meant for users."""


class CheckpointError(OnecatError):
    """A checkpoint that is missing, damaged, contradictory or of an unknown format."""


class ModelConfigError(OnecatError):
    """A model configuration that this engine doesn't implement."""


class CapacityError(OnecatError):
    """A plan that doesn't fit the memory of the device."""


class RequestError(OnecatError):
    """A request that can't be served: bad sampling values, an empty or too long prompt."""


class EngineError(OnecatError):
    """Engine arguments that are wrong or contradict each other, or a failure inside a running engine."""


def shown(value: Any) -> str:
    """A value in an error message; of a long one the beginning, of one that Python doesn't print its type."""
    try:
        text = repr(value)
    except (
        Exception
    ):  # an integer of thousands of digits, or whatever a class of the user's own raises
        return f"an unprintable {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:60]}..."


def first_line(error: BaseException) -> str:
    """What any exception says, in one line: the first of its message, or the name of its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
