"""The standard streams as the commands need them: there, and able to carry any text."""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from onecat_jax.errors import RequestError

# The device behind the output is full, gone or broken; a reader that went away is EPIPE, a case of its own.
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def prepare_streams() -> None:
    """Closed streams become the null device, input must be text, and what the output's encoding lacks becomes "?"."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # for the life of the process
    for stream, errors in ((sys.stdin, "strict"), (sys.stdout, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def read_input(read: Callable[[], str]) -> str:
    """What `read` gets from stdin.

    Raises:
      RequestError: it isn't text.
    """
    try:
        return read()
    except UnicodeDecodeError as error:
        raise RequestError(
            f"stdin isn't {error.encoding} text ({error.reason}); convert it first."
        ) from error


def tell(text: str) -> None:
    """A line on stderr, or nothing where that can't be written: the exit code still counts."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def is_output_error(error: OSError) -> bool:
    """Whether it is the output that can't be written."""
    return error.errno in _OUTPUT_ERRORS and error.filename is None


def exit_now(code: int) -> NoReturn:
    """Ends the process without winding the interpreter down.

    An interrupted compilation goes on in jaxlib's threads, which crash when the interpreter ends under them.
    """
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


def drop_output() -> None:
    """Keeps the interpreter from complaining when it flushes at exit what can't be written."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
