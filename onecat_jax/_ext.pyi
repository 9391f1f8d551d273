"""Types of the compiled extension: handler capsules, embedded device images, driver and processor facts."""

from typing import Any

def registrations() -> list[tuple[str, str, dict[str, Any]]]:
    """Rows of (target name, platform "cpu" or "CUDA", stage name -> handler capsule)."""

def images() -> list[tuple[str, str, int]]:
    """Embedded device images as (module, architecture, bytes)."""

def image(module: str, architecture: str) -> bytes:
    """One embedded device image. KeyError if there is none."""

def cuda_driver() -> tuple[int, str]:
    """(driver version such as 12080 or 0, reason why there is no usable driver or "")."""

def choose_image(module: str, capability: int) -> tuple[str, str]:
    """(architecture of the image for compute capability 10 * major + minor, or "", and the reason)."""

def force_ptx(value: bool) -> None:
    """For tests: ignore machine code and let the driver translate PTX."""

def loaded_architecture(module: str) -> str:
    """Architecture of the image that was loaded for a module, or ""."""

def cpu_isa() -> str:
    """Instruction set of the CPU handlers: "generic", "avx2" or "avx512"."""

def force_cpu_isa(name: str) -> None:
    """For tests: another instruction set, or "" for the best. ValueError if this processor lacks it."""
