"""Statistics, conditions and the JSON line of a measurement."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

REPEATS = 5
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Summary:
    """Repeated values of one figure."""

    median: float
    min: float
    max: float
    repeats: int

    @staticmethod
    def of(values: Sequence[float]) -> "Summary":
        return Summary(statistics.median(values), min(values), max(values), len(values))

    def __str__(self) -> str:
        return f"{self.median:.4g} ({self.min:.4g} .. {self.max:.4g}, n={self.repeats})"


def timed(work: Callable[[], object]) -> float:
    """Wall seconds of a call that returns when its result is there."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def repeated(value: Callable[[int], float], repeats: int = REPEATS) -> Summary:
    """`value(i)` for i = 1..repeats, after one unrecorded call with 0."""
    value(0)
    return Summary.of([value(i) for i in range(1, repeats + 1)])


def cpu_model() -> str:
    """Name of the processor as the kernel reports it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Installed versions of those packages that are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def conditions(packages: Sequence[str]) -> dict[str, Any]:
    """Where and when: processor, usable cores, load of the minute before, versions, UTC time."""
    return {
        "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
        "versions": versions(packages),
    }


def append(file: str, figure: str, summary: Summary, **rest: Any) -> None:
    """Adds one line to results/<file>."""
    RESULTS.mkdir(exist_ok=True)
    line = {"figure": figure, **asdict(summary), **rest}
    with (RESULTS / file).open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
