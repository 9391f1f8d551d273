"""Memory that a process really holds, for code whose allocations Python doesn't see."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

_STATUS = Path("/proc/self/status")


def anonymous() -> int:
    """Bytes of resident memory that belong to no file."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"{_STATUS} has no RssAnon")


class Peak:
    """Watches the process from a thread.

    Attributes:
      bytes: at most, above what was there when the block was entered.
    """

    def __enter__(self) -> "Peak":
        self._before = self._most = anonymous()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._done.is_set():
            self._most = max(self._most, anonymous())
            time.sleep(0.0005)

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.bytes = self._most - self._before


def in_fresh_process(code: str, **environment: str) -> Any:
    """Runs code that prints JSON, in a process where freed blocks go back to the system at once."""
    path = str(Path(__file__).parent)  # the tests, never the sources of the package
    given = {**os.environ, "PYTHONPATH": path, "MALLOC_MMAP_THRESHOLD_": "65536", **environment}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, env=given, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)
