"""Times of the linear kernels: many launches in one program, between two readings of the device's clock.

Operands rotate through a stack of layers that exceeds every cache. The ceilings, a copy by a kernel and the library's float16
product, are measured in the same run.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import Layer, LinearRoute, build_linear, linear
from onecat_jax.custom_calls.linear.samples import SAMPLES, random_tensor
from onecat_jax.custom_calls.linear.specs import SPECS, LinearSpec
from onecat_jax.custom_calls.probes import copy, stamp
from onecat_jax.errors import EngineError

STACK_BYTES = 700_000_000
MOST_LAUNCHES = 64
REPEATS = 9
GEMM_ROWS = 8192


def parse_rows(text: str) -> list[int]:
    """Numbers between commas.

    Raises:
      EngineError: something else.
    """
    try:
        rows = [int(word) for word in text.split(",")]
    except ValueError:
        rows = [0]
    if min(rows) < 1:
        raise EngineError(f"--rows is {text!r}; it must be positive numbers between commas.")
    return rows


def measurements(words: Sequence[str], rows: Sequence[int]) -> Iterator[dict[str, Any]]:
    """One line per ceiling, kernel, shape and number of rows; `words` select by name.

    Raises:
      EngineError: no NVIDIA GPU.
    """
    if jax.default_backend() != "gpu":
        raise EngineError(
            f"onecat bench kernels needs an NVIDIA GPU, JAX runs on {jax.default_backend()}; "
            "install the extra cuda12, or run it on another machine."
        )
    about = _conditions()
    size, seconds = _copy_speed()
    ceiling = 2 * size / seconds
    yield {
        **about,
        **_line("ceiling: copy kernel", [seconds]),
        "rate": f"{ceiling / 1e12:.2f} TB/s",
    }
    yield {**about, **_product()}
    for spec in (s for s in SPECS if "bench" in s.tags):
        for kind in SAMPLES:
            if all(word in f"{kind} {spec.name}" for word in words):
                for line in _of_weight(kind, spec, rows, ceiling):
                    yield {**about, **line}


def _conditions() -> dict[str, Any]:
    return {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "onecat_jax": version("onecat-jax"),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _line(name: str, seconds: Sequence[float]) -> dict[str, Any]:
    micros = [s * 1e6 for s in seconds]
    return {
        "name": name,
        "median_us": round(statistics.median(micros), 2),
        "best_us": round(min(micros), 2),
        "repeats": len(micros),
    }


def clocked(work: Callable[..., Sequence[Array]], x: Array, *operands: Any) -> list[float]:
    """Seconds of device time of `work(x, *operands)`, once per repeat."""

    @jax.jit
    def program(x: Array, *operands: Any) -> Any:
        x, start = stamp(x)
        results = work(x, *operands)
        _, end = stamp(results[-1], *results[:-1])
        return start, end

    def seconds() -> float:
        start, end = (np.asarray(c, np.uint64) for c in program(x, *operands))
        return float((end[0] - start[0]) + ((end[1] - start[1]) << np.uint64(32))) * 1e-9

    seconds()
    return [seconds() for _ in range(REPEATS)]


def _copy_speed() -> tuple[int, float]:
    """Bytes of an array and the median seconds of its copy."""
    array = jnp.ones((1 << 29,), jnp.float32)
    return array.nbytes, statistics.median(clocked(lambda x: (copy(x),), array))


def _product() -> dict[str, Any]:
    """The library's float16 product, for prefill."""
    n, k = 34816, 5120
    w = jax.random.normal(jax.random.key(0), (n, k), jnp.float16)  # regular weights run faster
    x = jnp.asarray(np.random.default_rng(0).standard_normal((GEMM_ROWS, k)), jnp.float16)
    times = clocked(lambda x, w: (jnp.einsum("mk,nk->mn", x, w),), x, w)
    rate = 2 * GEMM_ROWS * n * k / statistics.median(times)
    return {
        **_line(f"ceiling: library product [{GEMM_ROWS}, {k}] x [{n}, {k}]", times),
        "rate": f"{rate / 1e12:.0f} TFLOP/s",
    }


def _of_weight(
    kind: str, spec: LinearSpec, rows: Sequence[int], ceiling: float
) -> Iterator[dict[str, Any]]:
    weight = _stack(kind, spec)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(weight)) // weight.layers
    launches = min(MOST_LAUNCHES, weight.layers)
    for m in rows:
        x = jnp.asarray(np.random.default_rng(m).standard_normal((m, spec.k)), jnp.float16)

        def work(x: Array, weight: Any) -> list[Array]:
            return [linear(x, weight, Layer(i)) for i in range(launches)]

        times = [t / launches for t in clocked(work, x, weight)]
        speed = size / statistics.median(times)
        yield {
            **_line(f"{kind} {spec.name} M={m}", times),
            "bytes": size,
            "layers": weight.layers,
            "tb_per_s": round(speed / 1e12, 3),
            "of_copy": round(speed / ceiling, 4),
        }


def _stack(kind: str, spec: LinearSpec) -> Any:
    """Random layers, two of them again and again: packing all would take longer than measuring."""
    rng = np.random.default_rng(0)
    few = [[random_tensor(rng, kind, spec.n, spec.k)] for _ in range(2)]
    weight = build_linear(few, route=LinearRoute(Policy(strict=True)), dtype=jnp.float16)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(weight)) // 2
    times = -(-STACK_BYTES // (2 * size))
    return jax.tree.map(lambda a: jnp.tile(a, (times, *[1] * (a.ndim - 1))), weight)
