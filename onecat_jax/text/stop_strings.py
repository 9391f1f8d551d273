"""Finds stop strings in a growing text."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Scan:
    """What one piece of text led to.

    Attributes:
      text: text that is safe to show now.
      matched: the stop string that ended the text, None so far.
    """

    text: str
    matched: str | None = None


class StopScanner:
    """Cuts a text at its first stop string, wherever the pieces are cut.

    Text is read character by character: the stop string that is complete first ends it, and of several that are complete at the
    same character the longest. Text that could still become a stop string is held back.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """Args: stops: non-empty strings. include: whether the found stop string belongs to the text."""
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self._longest = max((len(stop) for stop in self._stops), default=0)

    def push(self, piece: str) -> Scan:
        """Reads on. After a match nothing more may be pushed."""
        text = self._held + piece
        found = self._first(text)
        if found is not None:
            self._held = ""
            start, stop = found
            return Scan(text[: start + len(stop)] if self._include else text[:start], stop)
        keep = self._possible_start(text)
        self._held = text[len(text) - keep :]
        return Scan(text[: len(text) - keep])

    def finish(self) -> str:
        """Releases what was held back."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str) -> tuple[int, str] | None:
        """(start, stop string) of the first match to be complete, the longest among equals."""
        ends = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if not ends:
            return None
        _, start, stop = min(ends)
        return start, stop

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of the text with which a stop string begins."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[len(text) - length :]
            if any(len(stop) > length and stop.startswith(tail) for stop in self._stops):
                return length
        return 0
