"""Speed of the gated delta rule on a GPU: single steps, verify rounds, replays, prefill, beside a copy.

    python bench/bench_gdn.py [--spec "27b tp1"] [--batches 1,4,8] [--layers 48] [--out FILE]

Contract. One program runs `layers` layers three times, unrolled, so that the GPU replays one recorded graph; every layer has
states of its own, and what it reads was last touched a whole round ago. Rows stay in the second-level cache, as after a
projection. Programs are queued back to back, so that the device's time is measured: time per layer is the whole time over
programs, rounds and layers. `share` is the speed of reading (and writing) the states beside that of a copy of 1 GiB in the same
run.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from conditions import ROOT, Conditions, append

from onecat_jax.custom_calls import gdn
from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.gdn.specs import SPECS, GDNSpec
from onecat_jax.custom_calls.linear import Layer
from onecat_jax.custom_calls.rows import LiveRows

POLICY = Policy(strict=True)
DIM, WIDTH, ROUNDS = 128, 4, 3


def normal(seed: int, *shape: int, dtype: Any = jnp.float32) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, dtype)


def seconds(program: Callable[..., Any], carried: Any, rest: tuple, passes: int) -> float:
    """Per pass, of passes that hand their donated caches on."""
    for _ in range(3):
        carried, _ = program(carried, *rest)
    jax.block_until_ready(carried)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(passes):
            carried, out = program(carried, *rest)
        jax.block_until_ready((carried, out))
        best = min(best, (time.perf_counter() - start) / passes)
    return best


def copy_speed() -> float:
    """Bytes read and written per second."""
    x = normal(0, 1 << 28)
    program = jax.jit(lambda x: (x * 1.5, None), donate_argnums=0)
    return 2 * x.nbytes / seconds(program, x, (), 20)


class Case:
    """The operands of a batch."""

    def __init__(self, spec: GDNSpec, batch: int, rows: int, layers: int):
        self.layers, self.batch, self.heads = layers, batch, spec.value_heads
        channels = (2 * spec.key_heads + spec.value_heads) * DIM
        self.weights = (
            0.5 * normal(1, layers, WIDTH, channels),
            jnp.log(jnp.linspace(1.0, 16.0, layers * spec.value_heads)).reshape(layers, -1),
            normal(2, layers, spec.value_heads) - 4,
        )
        self.norm = jnp.ones((layers, DIM))
        wide = channels + spec.value_heads * DIM
        self.projected = normal(3, batch, rows, wide, dtype=jnp.float16)
        self.gates = normal(4, batch, rows, 2 * spec.value_heads)
        self.channels, self.rows = channels, rows
        self.slots = jnp.arange(batch, dtype=jnp.int32)

    def caches(self) -> tuple[jax.Array, jax.Array]:
        flat = self.layers * self.batch
        states = 0.3 * normal(5, flat, self.heads, DIM, DIM)
        return states, normal(6, flat, WIDTH - 1, self.channels, dtype=jnp.float16)

    def where(self, layer: int, count: jax.Array) -> gdn.GDNRows:
        slots = layer * self.batch + self.slots
        return gdn.GDNRows(slots, jnp.full_like(count, 7), count, LiveRows.of(count))

    @property
    def count(self) -> jax.Array:
        return jnp.full(self.batch, self.rows, jnp.int32)


def steps(case: Case, gated: bool) -> tuple[Callable, Any, tuple]:
    def run(caches: Any, x: Any, gates: Any, weights: Any, norm: Any, count: Any) -> Any:
        for i in ROUNDS * list(range(case.layers)):
            where, of = case.where(i, count), gdn.GDNWeights(*weights)
            if gated:
                how = gdn.OutputNorm(norm, 1e-6)
                o, *caches = gdn.recur_gated(x, gates, *caches, where, of, Layer(i), how)
            else:
                o, *caches = gdn.recur(x, gates, *caches, where, of, Layer(i), policy=POLICY)
        return tuple(caches), o

    x = case.projected if gated else case.projected[..., : case.channels]
    rest = (x, case.gates, case.weights, case.norm, case.count)
    return jax.jit(run, donate_argnums=0), case.caches(), rest


def verifies(case: Case) -> tuple[Callable, Any, tuple]:
    def run(kept: Any, caches: Any, x: Any, gates: Any, weights: Any, norm: Any, count: Any) -> Any:
        rows, how, of = gdn.KeptRows(*kept), gdn.OutputNorm(norm, 1e-6), gdn.GDNWeights(*weights)
        for i in ROUNDS * list(range(case.layers)):
            where = case.where(i, count)
            o, rows = gdn.verify_gated(x, gates, *caches, rows, i, where, of, Layer(i), how)
        return (rows.qkv, rows.gates), o

    kept = (
        jnp.zeros((case.layers, case.batch, case.rows, case.channels), jnp.float16),
        jnp.zeros((case.layers, *case.gates.shape)),
    )
    small = (case.gates, case.weights, case.norm, case.count)
    return jax.jit(run, donate_argnums=0), kept, (case.caches(), case.projected, *small)


def prefills(case: Case, rounded: bool) -> tuple[Callable, Any, tuple]:
    def run(caches: Any, x: Any, gates: Any, weights: Any, count: Any) -> Any:
        of = gdn.GDNWeights(*weights)
        for i in range(case.layers):
            where = case.where(i, count)
            how = {"policy": POLICY, "float16_products": rounded}
            o, *caches = gdn.recur(x, gates, *caches, where, of, Layer(i), **how)
        return tuple(caches), o

    x = case.projected[..., : case.channels]
    rest = (x, case.gates, case.weights, case.count)
    return jax.jit(run, donate_argnums=0), case.caches(), rest


def report_prefills(spec: GDNSpec, write: Callable[[dict], None]) -> None:
    """Milliseconds per layer of 8192 tokens, as one sequence and as four."""
    for batch in (1, 4):
        for rounded in (False, True):
            case = Case(spec, batch, 8192 // batch, 4)
            each = seconds(*prefills(case, rounded), 3) / case.layers
            name = "prefill, float16 products" if rounded else "prefill"
            write({"operator": name, "batch": batch, "ms": round(each * 1e3, 3)})
            print(f"{name:26s} {batch} x {8192 // batch} {each * 1e3:7.3f} ms", flush=True)


def commits(case: Case, accepted: int) -> tuple[Callable, Any, tuple]:
    def run(caches: Any, kept: Any, weights: Any, count: Any) -> Any:
        where = gdn.GDNRows(case.slots, jnp.full_like(count, 7), count, LiveRows.of(count))
        for _ in range(ROUNDS):
            caches = gdn.commit(
                gdn.KeptRows(*kept), *caches, where, gdn.GDNWeights(*weights),
                first_layer=0, slots=case.batch, policy=POLICY,
            )  # fmt: skip
        return caches, None

    kept = (
        jnp.broadcast_to(case.projected[..., : case.channels], (case.layers, case.batch, case.rows, case.channels)) + 0,
        jnp.broadcast_to(case.gates, (case.layers, *case.gates.shape)) + 0,
    )  # fmt: skip
    rest = (kept, case.weights, jnp.full(case.batch, accepted, jnp.int32))
    return jax.jit(run, donate_argnums=0), case.caches(), rest


JOBS: dict[str, tuple[int, int, Callable[[Case], Any]]] = {  # rows, state passes
    "step": (1, 2, lambda c: steps(c, False)),
    "step gated": (1, 2, lambda c: steps(c, True)),
    "verify 2": (2, 1, verifies),
    "verify 8": (8, 1, verifies),
    "verify 16": (16, 1, verifies),
    "commit 4 of 8": (8, 2, lambda c: commits(c, 4)),
    "commit 8 of 8": (8, 2, lambda c: commits(c, 8)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", default="27b tp1")
    parser.add_argument(
        "--batches", type=lambda t: [int(n) for n in t.split(",")], default=[1, 4, 8]
    )
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--passes", type=int, default=10)
    parser.add_argument("--jobs", type=lambda t: t.split(","), default=list(JOBS))
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "gdn.jsonl")
    options = parser.parse_args()
    conditions = Conditions("python bench/bench_gdn.py " + " ".join(sys.argv[1:]))
    spec = next(s for s in SPECS if s.name == options.spec)
    copy = copy_speed()
    print(f"copy {copy / 1e12:.2f} TB/s", flush=True)

    def write(line: dict) -> None:
        line = {"bench": "gdn", "spec": spec.name, **line, "copy_tb_per_s": round(copy / 1e12, 2)}
        append(options.out, conditions, line)

    report_prefills(spec, write)
    for batch in options.batches:
        for name in options.jobs:
            rows, state_passes, build = JOBS[name]
            program, carried, rest = build(Case(spec, batch, rows, options.layers))
            each = seconds(program, carried, rest, options.passes) / options.layers / ROUNDS
            share = state_passes * batch * spec.value_heads * DIM * DIM * 4 / each / copy
            us = {"us": round(each * 1e6, 2), "share_of_copy": round(share, 3)}
            write({"operator": name, "batch": batch, **us})
            print(f"B={batch} {name:16s} {each * 1e6:7.2f} us  {share:5.1%} of copy", flush=True)


if __name__ == "__main__":
    main()
