"""Errors that a user can act on.

Every message says what was found, what is needed and what to do. The command line turns them into one sentence and exit
code 2; a server turns them into an HTTP 4xx or 5xx. Anything else that escapes is a bug of ours.
"""


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


def first_line(error: BaseException) -> str:
    """What any exception says, in one line: the first of its message, or the name of its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
