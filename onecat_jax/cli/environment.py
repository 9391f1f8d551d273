"""What the installation is and what it lacks: findings, each with what to do about it."""

import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import jax

from onecat_jax.compile_cache import cache_directory
from onecat_jax.config import EngineConfig

Status = Literal["ok", "warn", "fail"]

CUDNN_FOR_V100 = "9.10.2.21"  # the last cuDNN with Volta code, and the oldest that jax 0.11 takes
OLDEST_PYTHON, OLDEST_JAX, NEWER_JAX = (3, 11), (0, 10, 2), (0, 13)
OLDEST_DRIVER = 12000  # CUDA 12 wheels; the driver of branch 525
_VOLTA = 70


@dataclass(frozen=True)
class Row:
    """One finding."""

    name: str
    status: Status
    found: str
    advice: str = ""


def environment() -> Iterator[Row]:
    """All findings about this process and machine."""
    checks: tuple[Callable[[], Iterator[Row]], ...] = (
        _python,
        _jax,
        _plugins,
        _devices,
        _cudnn,
        _extension,
        _cache,
    )
    for check in checks:
        yield from check()


def version_of(distribution: str) -> str:
    """The installed version, "" if there is none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def numbers(version: str) -> tuple[int, ...]:
    """(0, 10, 2) of "0.10.2"; stops at the first part that isn't a number."""
    found: list[int] = []
    for part in version.split("."):
        if not part.isdigit():
            break
        found.append(int(part))
    return tuple(found)


def _python() -> Iterator[Row]:
    good = sys.version_info[:2] >= OLDEST_PYTHON
    advice = "" if good else "install Python 3.11 or newer"
    yield Row("python", "ok" if good else "fail", platform.python_version(), advice)


def _jax() -> Iterator[Row]:
    core, lib = version_of("jax"), version_of("jaxlib")
    good = OLDEST_JAX <= numbers(core) < NEWER_JAX
    advice = "" if good else "install jax from 0.10.2 on, below 0.13"
    yield Row("jax", "ok" if good else "fail", core, advice)
    same = numbers(core)[:2] == numbers(lib)[:2]
    advice = "" if same else f"install jaxlib {core}, the version of jax"
    yield Row("jaxlib", "ok" if same else "fail", lib, advice)


def _plugins() -> Iterator[Row]:
    """CUDA plugins must have the version of jax; that of CUDA 13 can't drive a V100."""
    core, found_any = version_of("jax"), False
    for name, oldest in (("jax-cuda12-plugin", 0), ("jax-cuda13-plugin", 75)):
        found = version_of(name)
        if not found:
            continue
        found_any, advice = True, ""
        if any(capability < oldest for capability in _capabilities()):
            advice = "it needs compute capability 7.5; " + _install_hint()
        elif numbers(found)[:2] != numbers(core)[:2]:
            advice = f"install {name}[with-cuda]=={core}"
        yield Row("cuda plugin", "fail" if advice else "ok", f"{name} {found}", advice)
    if not found_any:
        yield Row("cuda plugin", "ok", "none, programs run on CPU", _install_hint())


def _install_hint() -> str:
    return "for a V100 install onecat-jax[cuda12]"


def _capabilities() -> list[int]:
    """10 * major + minor of every GPU that JAX sees."""
    gpus = [d for d in jax.local_devices() if d.platform == "gpu"]
    pairs = [str(d.compute_capability).split(".") for d in gpus]
    return [10 * int(major) + int(minor) for major, minor in pairs]


def _devices() -> Iterator[Row]:
    capabilities = iter(_capabilities())
    for device in jax.local_devices():
        found = device.device_kind
        if device.platform == "gpu":
            capability = next(capabilities)
            found = f"{found}, compute capability {capability // 10}.{capability % 10}"
        yield Row(f"device {device.platform}:{device.id}", "ok", found)


def _cudnn() -> Iterator[Row]:
    found = version_of("nvidia-cudnn-cu12")
    volta = _VOLTA in _capabilities()
    if not found and not volta:
        return
    if found == CUDNN_FOR_V100 or not volta:
        yield Row("cudnn", "ok", found)
        return
    advice = f"install nvidia-cudnn-cu12=={CUDNN_FOR_V100}; later ones hold no code for a V100"
    yield Row("cudnn", "fail", found or "not installed as a package", advice)


def _extension() -> Iterator[Row]:
    """The compiled extension and all that needs it.

    A missing build is a finding, not a traceback.
    """
    try:
        from onecat_jax import _ext
    except ImportError as error:
        advice = "reinstall onecat-jax; a wheel or a C++ compiler for this platform is needed"
        yield Row("extension", "fail", str(error), advice)
        return
    handlers = _ext.registrations()
    counts = ", ".join(
        f"{sum(row[1] == name for row in handlers)} {name}" for name in ("cpu", "CUDA")
    )
    yield Row("extension", "ok", f"handlers: {counts}; CPU instruction set {_ext.cpu_isa()}")
    yield from _images(_ext)
    yield from _driver(_ext)
    yield from _routes()


def _images(ext: Any) -> Iterator[Row]:
    """Embedded device code, and which of it every kind of GPU here would load.

    A module needs no code for every GPU: some are written for one generation's matrix instructions.
    """
    modules: dict[str, list[str]] = {}
    for module, architecture, _ in ext.images():
        modules.setdefault(module, []).append(architecture)
    if not modules:
        yield Row("device images", "warn", "none embedded", "build with a CUDA compiler from PyPI")
    for module, architectures in modules.items():
        yield Row(f"images {module}", "ok", ", ".join(sorted(architectures)))
    for capability in sorted(set(_capabilities())):
        chosen = {module: ext.choose_image(module, capability)[0] for module in modules}
        found = ", ".join(f"{module} {image}" for module, image in chosen.items() if image)
        name = f"images for {capability // 10}.{capability % 10}"
        advice = "" if found else "this build has no code for this GPU; operators run in plain JAX"
        yield Row(name, "ok" if found else "warn", found or "none", advice)


def _driver(ext: Any) -> Iterator[Row]:
    version, reason = ext.cuda_driver()
    if not version:
        needed = bool(_capabilities())
        yield Row(
            "cuda driver", "fail" if needed else "ok", f"none: {reason}" if reason else "none"
        )
        return
    good = version >= OLDEST_DRIVER
    found = f"CUDA {version // 1000}.{version % 1000 // 10}"
    advice = "" if good else "install driver 525 or later"
    yield Row("cuda driver", "ok" if good else "fail", found, advice)


def _routes() -> Iterator[Row]:
    """The route of a linear of every weight kind in the compute dtype of the default device."""
    from onecat_jax.custom_calls.linear import KINDS, LinearDescriptor, plan  # needs the extension

    dtype = EngineConfig().compute_dtype(jax.local_devices()[0].platform)
    for kind in KINDS:
        route = plan(LinearDescriptor(kind, 4096, 4096, dtype))
        slow = route.name == "plain" and bool(route.declined)
        advice = "it works, and is slow" if slow else ""
        yield Row(f"route linear {kind}", "warn" if slow else "ok", route.explain(), advice)


def _cache() -> Iterator[Row]:
    """The folder of the persistent compile cache, or the nearest folder that exists above it."""
    folder = cache_directory()
    good = folder is not None and _can_be_made(folder)
    advice = "" if good else "set JAX_COMPILATION_CACHE_DIR to a folder that can be written"
    yield Row("compile cache", "ok" if good else "warn", str(folder or "no folder"), advice)


def _can_be_made(folder: Path) -> bool:
    existing = next(p for p in (folder, *folder.parents) if os.path.exists(p))
    return existing.is_dir() and os.access(existing, os.W_OK)
