"""What a figure depends on, recorded with every figure; and the two ways to time a program."""

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax

ROOT = Path(__file__).resolve().parent.parent


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def _commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


@dataclass(frozen=True)
class Conditions:
    """Of one run of a bench."""

    command: str
    device: str = field(default_factory=lambda: jax.devices()[0].device_kind)
    processor: str = field(default_factory=_processor)
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    load_average: float = field(default_factory=lambda: round(os.getloadavg()[0], 2))
    jax: str = jax.__version__
    commit: str = field(default_factory=_commit)
    time: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))


def append(path: Path, conditions: Conditions, row: dict[str, Any]) -> None:
    """One JSON line per measurement."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps({**row, "conditions": asdict(conditions)}) + "\n")


@dataclass(frozen=True)
class Timing:
    """Wall seconds of repeated calls after two warm ones."""

    median: float
    best: float
    repeats: int


def timed(call: Callable[[], Any], repeats: int) -> Timing:
    """Each call runs to completion before the next starts."""
    for _ in range(2):
        jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return Timing(statistics.median(times), min(times), repeats)
