"""How many bytes the engine may plan with on a device, and what decides that number."""

import os
from dataclasses import dataclass
from pathlib import Path

import jax

from onecat_jax.sizes import gib

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of one device.

    Attributes:
      available: bytes that the plan may use.
      device: its name, e.g. "cuda:0".
      source: what decides the number, for messages.
    """

    available: int
    device: str
    source: str


def device_memory(device: jax.Device, utilization: float, ranks: int = 1) -> DeviceMemory:
    """Reads what the device has.

    A GPU's total is the memory pool that JAX was given (XLA_PYTHON_CLIENT_MEM_FRACTION governs it,
    this engine never sets it), a CPU's is what the system can give without swapping, or the limit
    of the container if that is less. CPU devices share it.

    Args:
      utilization: the fraction of it that may be used, gpu_memory_utilization.
      ranks: devices of this kind that the model is spread over.
    """
    name = f"{device.platform}:{device.id}"
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        share = int(stats["bytes_limit"] * utilization)
        source = (
            f"{utilization:.0%} (gpu_memory_utilization) of JAX's pool of "
            f"{gib(stats['bytes_limit'])} (XLA_PYTHON_CLIENT_MEM_FRACTION)"
        )
        return DeviceMemory(max(share - stats.get("bytes_in_use", 0), 0), name, source)
    free = _host_available()
    source = f"{utilization:.0%} (gpu_memory_utilization) of {gib(free)} of free host memory"
    if ranks > 1:
        source += f", shared by {ranks} devices"
    return DeviceMemory(int(free * utilization) // ranks, name, source)


def _host_available() -> int:
    free = _meminfo("MemAvailable")
    if free is None:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    limit, used = _number(_CGROUP / "memory.max"), _number(_CGROUP / "memory.current")
    return free if limit is None or used is None else min(free, max(limit - used, 0))


def _meminfo(field: str) -> int | None:
    if not _MEMINFO.exists():
        return None
    for line in _MEMINFO.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return 1024 * int(rest.split()[0])
    return None


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
