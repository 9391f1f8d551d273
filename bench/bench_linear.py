"""Speed of the packed linears against a dense product of the same shape, and against the bandwidth of memory.

    python bench/bench_linear.py [--kinds nvfp4,fp8-row,fp8-block,int4-128] [--shapes bench|tiny|27b] [--rows 1,2,4,8,16,64]
                                 [--plain] [--warm] [--out FILE]

Contract. One program loops over a stack whose layers together are 0.7 GB (8 layers with --warm), 8 linears per round; time
per linear is the program's wall time divided by the layers, best and median of the calls after two warm ones. Activations
are standard normal, codes and scales random; bytes are those of codes and scales. The peer is the same loop over 8 dense
matrices (float32 on a CPU, float16 on a GPU, multiplied by XLA), which together exceed a GPU's second-level cache for every
27B shape. --plain also runs the weights' own plain route: decoded to float32, then multiplied, 8 layers, best of 3.
Bandwidth: the largest of several plain reads of a large array in the same run.
On a CPU shared with other work, `best` says more than `median`.
"""

import argparse
import itertools
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from conditions import ROOT, Conditions, append, timed
from jax import Array, lax

from onecat_jax import _ext
from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import (
    Layer,
    LinearRoute,
    build_linear,
    linear,
)
from onecat_jax.custom_calls.linear.samples import random_tensor
from onecat_jax.custom_calls.linear.specs import SPECS, LinearSpec

ON_GPU = jax.default_backend() == "gpu"
DTYPE = jnp.float16 if ON_GPU else jnp.float32
STACK_BYTES = 700_000_000  # of weights per program, when they are to come from memory
GROUP = 8  # linears per round of the loop
MODULES = [f"{k}_{f}" for k in ("nvfp4", "fp8", "int4") for f in ("m16n8k16", "m8n8k4")]
KINDS = ("nvfp4", "fp8-row", "fp8-block", "int4-128", "int4-32")


def read_bandwidth() -> float:
    """Bytes per second of a plain read: of 8 GB on a GPU, of 1 GB on a CPU."""
    if ON_GPU:
        array = jnp.ones((1 << 15, 1 << 16), jnp.float32)
        total = jax.jit(lambda a: jnp.sum(a, axis=1))
        return array.nbytes / timed(lambda: total(array), 20).best
    parts = np.array_split(np.ones(1 << 27, np.float64), jax.local_device_count() * 16)
    with ThreadPoolExecutor() as pool:
        return sum(p.nbytes for p in parts) / timed(lambda: list(pool.map(np.sum, parts)), 8).best


def built(kind: str, spec: LinearSpec, policy: Policy = Policy()) -> Any:
    """A few random layers: packing dozens of large ones would take longer than measuring them."""
    rng = np.random.default_rng(0)
    few = [[random_tensor(rng, kind.replace("-", " "), spec.n, spec.k)] for _ in range(2)]
    return build_linear(few, route=LinearRoute(policy), dtype=DTYPE)


def repeated(weight: Any, layers: int) -> Any:
    """The layers again and again."""
    return jax.tree.map(lambda a: jnp.tile(a, (-(-layers // 2), *[1] * (a.ndim - 1))), weight)


def layer_bytes(weight: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(weight)) // weight.layers


def looped(
    one: Callable[[Array, Any, Array, int], Array], weight: Any, rounds: int
) -> Callable[[Array], Any]:
    """rounds x GROUP calls of one(x, weight, round, place) as one program.

    The results of a round are the loop's carry, so their buffers never move: a GPU's command buffer is recorded once. The
    sign of the activations alternates, so that nothing can be moved out of the loop.
    """

    @jax.jit
    def run(x: Array, weight: Any) -> Any:
        def body(i: Array, carry: Any) -> Any:
            x, _ = carry
            return -x, tuple(one(x, weight, i, place) for place in range(GROUP))

        shape = jax.eval_shape(lambda: one(x, weight, jnp.int32(0), 0))
        start = (x, (jnp.zeros(shape.shape, shape.dtype),) * GROUP)
        return lax.fori_loop(0, rounds, body, start)

    return lambda x: run(x, weight)


def packed_program(weight: Any, layers: int, policy: Policy = Policy()) -> Callable[[Array], Any]:
    def one(x: Array, weight: Any, i: Array, place: int) -> Array:
        return linear(x, weight, Layer(i, GROUP, place), policy=policy)

    return looped(one, weight, layers // GROUP)


def dense_program(spec: LinearSpec, rounds: int) -> Callable[[Array], Any]:
    """GROUP separate matrices, read in every round."""
    keys = jax.random.split(jax.random.key(0), GROUP)
    make = jax.jit(lambda key: jax.random.normal(key, (spec.n, spec.k), DTYPE))
    weights = [make(key) for key in keys]
    return looped(lambda x, ws, _, place: jnp.einsum("mk,nk->mn", x, ws[place]), weights, rounds)


def plain_times(kind: str, spec: LinearSpec, xs: list[Array]) -> list[float]:
    """Seconds per linear on the plain route."""
    plain = Policy("plain")
    run = packed_program(repeated(built(kind, spec, plain), GROUP), GROUP, plain)
    return [timed(lambda x=x: run(x), 3).best / GROUP for x in xs]


def measure(
    kind: str, spec: LinearSpec, rows: list[int], bandwidth: float, options: argparse.Namespace
) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    weight = built(kind, spec)
    size = layer_bytes(weight)
    rounds = 1 if options.warm else max(1, -(-STACK_BYTES // (size * GROUP)))
    layers = rounds * GROUP
    packed = packed_program(repeated(weight, layers), layers)
    dense = dense_program(spec, rounds)
    xs = [jnp.asarray(rng.standard_normal((m, spec.k)), DTYPE) for m in rows]
    plain = plain_times(kind, spec, xs) if options.plain else [None] * len(rows)
    lines = []
    for m, x, plain_seconds in zip(rows, xs, plain, strict=True):
        ours, peer = timed(lambda x=x: packed(x), 9), timed(lambda x=x: dense(x), 9)
        seconds = ours.best / layers
        line = {
            "bench": "linear",
            "kind": kind,
            "shape": spec.name,
            "n": spec.n,
            "k": spec.k,
            "m": m,
            "weights": "in cache" if options.warm else "from memory",
            "layers": layers,
            "bytes": size,
            "best_us": round(seconds * 1e6, 2),
            "median_us": round(ours.median / layers * 1e6, 2),
            "gb_per_s": round(size / seconds / 1e9, 2),
            "share_of_read": round(size / seconds / bandwidth, 3),
            "gflop_per_s": round(2 * m * spec.n * spec.k / seconds / 1e9, 1),
            "dense_dtype": np.dtype(DTYPE).name,
            "dense_best_us": round(peer.best / layers * 1e6, 2),
            "dense_median_us": round(peer.median / layers * 1e6, 2),
            "times_faster_than_dense": round(peer.best / layers / seconds, 2),
            "read_gb_per_s": round(bandwidth / 1e9, 1),
            "repeats": ours.repeats,
        }
        if plain_seconds is not None:
            line["plain_best_us"] = round(plain_seconds * 1e6, 2)
            line["times_faster_than_plain"] = round(plain_seconds / seconds, 2)
        lines.append(line)
    return lines


def body() -> str:
    """Which code ran: the instruction set, or the device image."""
    if not ON_GPU:
        return _ext.cpu_isa()
    return " ".join(f"{m}.{a}" for m in MODULES if (a := _ext.loaded_architecture(m)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=KINDS[0], help=f"some of {', '.join(KINDS)}")
    parser.add_argument("--shapes", default="bench", help="part of a name, or the tag 'bench'")
    parser.add_argument("--rows", default="1,2,4,8,16,64")
    parser.add_argument(
        "--warm", action="store_true", help="a stack of 8 layers that may stay in cache"
    )
    parser.add_argument("--plain", action="store_true", help="the plain route as well")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "linear.jsonl")
    options = parser.parse_args()
    chosen = [s for s in SPECS if options.shapes in s.tags or options.shapes in s.name]
    rows = [int(m) for m in options.rows.split(",")]
    conditions = Conditions("python bench/bench_linear.py " + " ".join(sys.argv[1:]))
    bandwidth = read_bandwidth()
    print(
        f"{conditions.device}, reads at {bandwidth / 1e9:.1f} GB/s, load {conditions.load_average}"
    )
    for spec, kind in itertools.product(chosen, options.kinds.split(",")):
        for line in measure(kind, spec, rows, bandwidth, options):
            append(options.out, conditions, {**line, "body": body()})
            plain = line.get("times_faster_than_plain")
            print(
                f"{spec.name:24s} {kind:9s} M={line['m']:<3d} {line['best_us']:9.1f} us (median {line['median_us']:.1f})  "
                f"{line['gb_per_s']:7.1f} GB/s = {100 * line['share_of_read']:.0f}% of read  "
                f"{line['gflop_per_s']:9.1f} GFLOP/s  {line['times_faster_than_dense']:.2f} x dense "
                f"({line['dense_best_us']:.1f} us)" + (f"  {plain:.1f} x plain" if plain else ""),
                flush=True,
            )


if __name__ == "__main__":
    main()
