"""Tensors on their way from disk while others are packed."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

_NEAR = 64 << 20  # bytes that a reader has ahead of it whatever the others do
_FAR = 512 << 20  # bytes that are fetched and not yet read, all together


class ReadAhead:
    """Fetches names in the order in which they are expected; a thread of its own waits for the disk.

    Each is fetched once. That the system forgets some of them again before they are read costs time, nothing else.
    """

    def __init__(self, nbytes: Callable[[str], int], fetch: Callable[[str], None]):
        """
        Args:
          nbytes: size of what a name stands for.
          fetch: starts reading it; what it raises is ignored, for whoever reads it meets the same.
        """
        self._nbytes, self._fetch = nbytes, fetch
        self._left: dict[str, None] = {}  # not yet fetched, in order
        self._seen: set[str] = set()
        self._under_way: dict[str, int] = {}  # fetched and not yet read -> bytes
        self._lock, self._thread = Lock(), ThreadPoolExecutor(1)

    def expect(self, names: Sequence[str]) -> None:
        """These will be read, after those that were expected before."""
        with self._lock:
            new = [name for name in names if name not in self._seen]
            self._seen.update(new)
            self._left |= dict.fromkeys(new)
            self._go_on()

    def reached(self, name: str, following: Iterator[str]) -> None:
        """A reader is about to read `name`, and will go on with those that follow."""
        with self._lock:
            self._start(name)
            self._under_way.pop(name, None)
            near = 0
            for other in following:
                if near >= _NEAR:
                    break
                self._start(other)
                near += self._nbytes(other)
            self._go_on()

    def _go_on(self) -> None:
        while self._left and sum(self._under_way.values()) < _FAR:
            self._start(next(iter(self._left)))

    def _start(self, name: str) -> None:
        if name in self._left:
            del self._left[name]
            self._under_way[name] = self._nbytes(name)
            self._thread.submit(self._fetch, name)
