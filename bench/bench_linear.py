"""Speed of the NVFP4 linear against a dense product of the same shape, and against the bandwidth of memory.

    python bench/bench_linear.py [--shapes bench|tiny|27b] [--rows 1,2,4,8,16,64] [--out FILE]

Contract. One program runs every layer of a stack once (separate weights, so that together they exceed the last-level cache
by the factor printed, unless --warm); time per linear is the program's time divided by the layers. Activations are
standard normal, codes random, block scales random around 1. The peer is the same program with dense weights: float32 on a
CPU, float16 on a GPU, multiplied by XLA. Bandwidth: the largest of several plain reads of a large array in the same run.
On a CPU shared with other work, `best` says more than `median`.
"""

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from conditions import ROOT, Conditions, append, timed
from jax import Array

from onecat_jax import _ext
from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import (
    Layer,
    LinearRoute,
    NVFP4Tensor,
    build_linear,
    linear,
)
from onecat_jax.custom_calls.linear.specs import SPECS, LinearSpec

ON_GPU = jax.default_backend() == "gpu"
DTYPE = jnp.float16 if ON_GPU else jnp.float32
STACK_BYTES = 700_000_000  # of weights per program, when they are to come from memory
MODULES = ("nvfp4_m16n8k16", "nvfp4_m8n8k4")


def read_bandwidth() -> float:
    """Bytes per second of a plain read of 1 GB."""
    if ON_GPU:
        array = jnp.ones(1 << 28, jnp.float32)
        total = jax.jit(jnp.sum)
        return array.nbytes / timed(lambda: total(array), 20).best
    parts = np.array_split(np.ones(1 << 27, np.float64), jax.local_device_count() * 16)
    with ThreadPoolExecutor() as pool:
        return sum(p.nbytes for p in parts) / timed(lambda: list(pool.map(np.sum, parts)), 8).best


def nvfp4_stack(rng: np.random.Generator, spec: LinearSpec, layers: int) -> Any:
    """A few random layers, repeated: packing dozens of large ones would take longer than measuring them."""
    few = [
        [
            NVFP4Tensor(
                rng.integers(0, 256, (spec.n, spec.k // 2), dtype=np.uint8),
                rng.integers(0x30, 0x40, (spec.n, spec.k // 16), dtype=np.uint8),
                np.float32(0.01),
            )
        ]
        for _ in range(2)
    ]
    weight = build_linear(few, route=LinearRoute(), dtype=DTYPE)
    tile = lambda a: jnp.tile(a, (-(-layers // 2), *[1] * (a.ndim - 1)))  # noqa: E731
    return jax.tree.map(tile, weight)


def program(weight: Any, layers: int) -> Callable[[Array], Any]:
    def run(x: Array, weight: Any) -> list[Array]:
        return [linear(x, weight, Layer(i), policy=Policy()) for i in range(layers)]

    compiled = jax.jit(run)
    return lambda x: compiled(x, weight)


def dense_program(spec: LinearSpec, layers: int) -> Callable[[Array], Any]:
    keys = jax.random.split(jax.random.key(0), layers)
    make = jax.jit(lambda key: jax.random.normal(key, (spec.n, spec.k), DTYPE))
    weights = [make(key) for key in keys]
    compiled = jax.jit(lambda x, ws: [jnp.einsum("mk,nk->mn", x, w) for w in ws])
    return lambda x: compiled(x, weights)


def measure(
    spec: LinearSpec, rows: list[int], bandwidth: float, warm: bool
) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    dense_bytes = spec.n * spec.k * np.dtype(DTYPE).itemsize
    layers = 8 if warm else max(8, -(-STACK_BYTES // spec.nvfp4_bytes) // 2 * 2)
    dense_layers = 8 if warm else max(2, -(-STACK_BYTES // dense_bytes))
    packed = program(nvfp4_stack(rng, spec, layers), layers)
    dense = dense_program(spec, dense_layers)
    lines = []
    for m in rows:
        x = jnp.asarray(rng.standard_normal((m, spec.k)), DTYPE)
        ours, peer = timed(lambda x=x: packed(x), 9), timed(lambda x=x: dense(x), 9)
        seconds = ours.best / layers
        lines.append(
            {
                "bench": "linear",
                "shape": spec.name,
                "n": spec.n,
                "k": spec.k,
                "m": m,
                "weights": "in cache" if warm else "from memory",
                "layers": layers,
                "best_us": round(seconds * 1e6, 2),
                "median_us": round(ours.median / layers * 1e6, 2),
                "gb_per_s": round(spec.nvfp4_bytes / seconds / 1e9, 2),
                "share_of_read": round(spec.nvfp4_bytes / seconds / bandwidth, 3),
                "gflop_per_s": round(2 * m * spec.n * spec.k / seconds / 1e9, 1),
                "dense_dtype": np.dtype(DTYPE).name,
                "dense_best_us": round(peer.best / dense_layers * 1e6, 2),
                "dense_median_us": round(peer.median / dense_layers * 1e6, 2),
                "times_faster_than_dense": round(peer.best / dense_layers / seconds, 2),
                "read_gb_per_s": round(bandwidth / 1e9, 1),
                "repeats": ours.repeats,
            }
        )
    return lines


def body() -> str:
    """Which code ran: the instruction set, or the device image."""
    if not ON_GPU:
        return _ext.cpu_isa()
    return " ".join(f"{m}.{a}" for m in MODULES if (a := _ext.loaded_architecture(m)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="bench", help="part of a name, or the tag 'bench'")
    parser.add_argument("--rows", default="1,2,4,8,16,64")
    parser.add_argument(
        "--warm", action="store_true", help="a stack of 8 layers that may stay in cache"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "linear.jsonl")
    options = parser.parse_args()
    chosen = [s for s in SPECS if options.shapes in s.tags or options.shapes in s.name]
    rows = [int(m) for m in options.rows.split(",")]
    conditions = Conditions("python bench/bench_linear.py " + " ".join(sys.argv[1:]))
    bandwidth = read_bandwidth()
    print(
        f"{conditions.device}, reads at {bandwidth / 1e9:.1f} GB/s, load {conditions.load_average}"
    )
    for spec in chosen:
        for line in measure(spec, rows, bandwidth, options.warm):
            append(options.out, conditions, {**line, "body": body()})
            print(
                f"{spec.name:24s} M={line['m']:<3d} {line['best_us']:9.1f} us (median {line['median_us']:.1f})  "
                f"{line['gb_per_s']:7.1f} GB/s = {100 * line['share_of_read']:.0f}% of read  "
                f"{line['gflop_per_s']:9.1f} GFLOP/s  {line['times_faster_than_dense']:.2f} x dense "
                f"({line['dense_best_us']:.1f} us)",
                flush=True,
            )


if __name__ == "__main__":
    main()
