"""Progress of loading and compiling: a bar on a terminal, silence elsewhere."""

import sys
from collections.abc import Callable
from typing import TextIO

Progress = Callable[[str, int, int], None]


_BYTES = ("loading weights",)  # what is counted in bytes, which are shown as kB, MB and GB


def terminal_progress(stream: TextIO | None = None, unit: str = "it") -> Progress | None:
    """A callable (what, done, total) that draws on a terminal; None if `stream` (default stderr) is none.

    Args:
      unit: of done and total, where they aren't known to be bytes; "B" for bytes.
    """
    stream = sys.stderr if stream is None else stream
    return _Bar(stream, unit) if stream.isatty() else None


class _Bar:
    """One bar, which vanishes when done reaches total."""

    def __init__(self, stream: TextIO, unit: str) -> None:
        from tqdm import tqdm  # only where something is drawn

        self._make = tqdm
        self._stream, self._unit = stream, unit
        self._bar: tqdm | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._bar is None or self._bar.total != total:
            self._close()
            unit = "B" if what in _BYTES else self._unit
            self._bar = self._make(
                total=total, file=self._stream, leave=False, unit=unit, unit_scale=unit == "B"
            )
        self._bar.set_description(what, refresh=False)
        self._bar.n = done
        self._bar.refresh()
        if done >= total:
            self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
