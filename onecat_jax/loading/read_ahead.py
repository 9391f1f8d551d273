"""Tensors on their way from disk while others are packed."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import Lock, Thread

THREAD = "read ahead"  # its name
NEAR = 32 << 20  # bytes that a reader has ahead of it whatever the others do
FAR = (
    128 << 20
)  # bytes that are fetched and not yet read, all together; more only make a reader wait behind the others' bytes


class ReadAhead:
    """Fetches names in the order in which they are expected, those that a reader needs soon before the others.

    Each is fetched once, but for `again`. That the system forgets some of them before they are read costs time, nothing else.
    A thread of its own waits for the disk; it ends when nothing is left to do. All methods may be called from any thread.
    """

    def __init__(self, nbytes: Callable[[str], int], fetch: Callable[[str], None]):
        """
        Args:
          nbytes: size of what a name stands for.
          fetch: has the system read it; it doesn't raise, for whoever reads the name meets what is wrong with it.
        """
        self._nbytes, self._fetch = nbytes, fetch
        self._seen: set[str] = set()
        self._left: dict[str, None] = {}  # expected and not yet started, in order
        self._unread: dict[str, int] = {}  # started -> bytes
        self._bytes = 0  # of all unread
        self._started: deque[str] = deque()  # for the thread
        self._lock = Lock()
        self._thread: Thread | None = None

    def expect(self, names: Sequence[str]) -> None:
        """These will be read, after those that were expected before."""
        with self._lock:
            self._expect(names)

    def again(self, names: Sequence[str]) -> None:
        """These have been read and will be once more."""
        with self._lock:
            self._seen.difference_update(names)
            self._expect(names)

    def reached(self, name: str, following: Iterable[str]) -> None:
        """A reader is about to read `name`, and will go on with those that follow."""
        with self._lock:
            self._start(name)
            self._bytes -= self._unread.pop(name, 0)
            near = 0
            for other in following:
                if near >= NEAR:
                    break
                self._start(other)
                near += self._nbytes(other)
            self._go_on()

    def _expect(self, names: Sequence[str]) -> None:
        new = [name for name in names if name not in self._seen]
        self._seen.update(new)
        self._left |= dict.fromkeys(new)
        self._go_on()

    def _go_on(self) -> None:
        while self._left and self._bytes < FAR:
            self._start(next(iter(self._left)))

    def _start(self, name: str) -> None:
        if name not in self._left:
            return
        del self._left[name]
        self._unread[name] = self._nbytes(name)
        self._bytes += self._unread[name]
        self._started.append(name)
        if self._thread is None:
            self._thread = Thread(target=self._run, name=THREAD, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (name := self._next()) is not None:
            self._fetch(name)

    def _next(self) -> str | None:
        with self._lock:
            if self._started:
                return self._started.popleft()
            self._thread = None
            return None
