"""Speed of the small-row forms of GDN and paged attention on CPU, the handler beside plain JAX.

    python bench/bench_rows.py [--batches 1,2,8] [--contexts 256,4096] [--rows 1] [--out FILE]

Contract. The embedded model's layer: GDN with 4 key heads and 8 value heads of 128, 4 taps; attention with 8 query heads
over 4 kv heads of 256, pages of 16 tokens, all caches float32. One program runs a device loop over `layers` layers of one
cache (donated), so that what a layer reads was last touched a whole step ago; time per layer is the program's time divided
by the layers. GDN doesn't depend on the context. On a machine shared with other work, `best` says more than `median`.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from conditions import ROOT, Conditions, Timing, append
from jax import lax

from onecat_jax import _ext
from onecat_jax.custom_calls import gdn, paged_attention
from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import Layer
from onecat_jax.custom_calls.paged_attention import AttentionRows
from onecat_jax.custom_calls.rows import LiveRows

GDN_LAYERS, ATTENTION_LAYERS = 6, 2
KEY_HEADS, VALUE_HEADS, HEAD, WIDTH = 4, 8, 128, 4
CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * HEAD
HEADS, KV_HEADS, DIM, PAGE = 8, 4, 256, 16

Step = Callable[[Any], Any]  # caches -> a number that needs every output, caches; donates


def normal(shape: tuple[int, ...]) -> jax.Array:
    return jax.random.normal(jax.random.key(len(shape)), shape, jnp.float32)


def gdn_step(batch: int, rows: int, policy: Policy) -> tuple[Step, Any]:
    weights = gdn.GDNWeights(
        normal((GDN_LAYERS, CHANNELS, WIDTH)) * 0.5,
        jnp.zeros((GDN_LAYERS, VALUE_HEADS)),
        jnp.zeros((GDN_LAYERS, VALUE_HEADS)),
    )
    qkv, gates = normal((batch, rows, CHANNELS)), normal((batch, rows, 2 * VALUE_HEADS))
    start, count = jnp.full(batch, 7, jnp.int32), jnp.full(batch, rows, jnp.int32)

    def run(caches: Any) -> Any:
        def layer(i: Any, carry: Any) -> Any:
            total, states, windows = carry
            slots = i * batch + jnp.arange(batch, dtype=jnp.int32)
            where = gdn.GDNRows(slots, start, count, LiveRows.of(count))
            o, states, windows = gdn.recur(
                qkv, gates, states, windows, where, weights, Layer(i), policy=policy
            )
            return total + o.sum(), states, windows

        return lax.fori_loop(0, GDN_LAYERS, layer, (jnp.float32(0), *caches))

    slots = GDN_LAYERS * batch
    states = jnp.zeros((slots, VALUE_HEADS, HEAD, HEAD))
    return jax.jit(run, donate_argnums=0), (states, jnp.zeros((slots, WIDTH - 1, CHANNELS)))


def attention_step(batch: int, rows: int, context: int, policy: Policy) -> tuple[Step, Any]:
    pages = -(-context // PAGE)
    table = np.random.default_rng(0).permutation(batch * pages).reshape(batch, pages) + 1
    count = jnp.full(batch, rows, jnp.int32)
    where = AttentionRows(
        jnp.asarray(table, jnp.int32), jnp.full(batch, context - rows), count, LiveRows.of(count)
    )
    q, k = normal((batch, rows, HEADS, DIM)), normal((batch, rows, KV_HEADS, DIM))
    per_layer = batch * pages + 1

    def run(caches: Any) -> Any:
        def layer(i: Any, carry: Any) -> Any:
            total, keys, values = carry
            keys, values = paged_attention.write_tokens(
                keys, values, k, k, where, i * per_layer, policy=policy
            )
            o = paged_attention.attend(
                q, keys, values, where, i * per_layer, scale=DIM**-0.5, policy=policy
            )
            return total + o.sum(), keys, values

        return lax.fori_loop(0, ATTENTION_LAYERS, layer, (jnp.float32(0), *caches))

    shape = (ATTENTION_LAYERS * per_layer, PAGE, KV_HEADS, DIM)
    return jax.jit(run, donate_argnums=0), (normal(shape), normal(shape) + 0.0)


def timed_steps(step: Step, caches: Any, layers: int, seconds: float) -> Timing:
    """Seconds per layer, of steps that hand their caches on."""
    for _ in range(2):
        _, *caches = jax.block_until_ready(step(tuple(caches)))
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        _, *caches = jax.block_until_ready(step(tuple(caches)))
        times.append((time.perf_counter() - start) / layers)
    return Timing(statistics.median(times), min(times), len(times))


def measure(name: str, layers: int, build: Callable[[Policy], Any], seconds: float) -> dict:
    """Handler and plain JAX in the same run."""
    ours = timed_steps(*build(Policy("auto", strict=True)), layers, seconds)
    peer = timed_steps(*build(Policy("plain")), layers, seconds)
    return {
        "bench": "rows",
        "operator": name,
        "isa": _ext.cpu_isa(),
        "best_us": round(ours.best * 1e6, 1),
        "median_us": round(ours.median * 1e6, 1),
        "repeats": ours.repeats,
        "plain_best_us": round(peer.best * 1e6, 1),
        "plain_median_us": round(peer.median * 1e6, 1),
        "times_faster": round(peer.median / ours.median, 2),
    }


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=numbers, default=[1, 2, 8])
    parser.add_argument("--contexts", type=numbers, default=[256, 4096])
    parser.add_argument("--rows", type=int, default=1, help="new tokens of each batch row")
    parser.add_argument("--seconds", type=float, default=1.0, help="per measurement")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "rows.jsonl")
    options = parser.parse_args()
    conditions = Conditions("python bench/bench_rows.py " + " ".join(sys.argv[1:]))

    def report(line: dict, **more: int) -> None:
        append(options.out, conditions, {**line, "rows": options.rows, **more})
        print(
            f"{line['operator']:10s} {more}  {line['best_us']:8.1f} us (median {line['median_us']:.1f})  "
            f"plain {line['plain_best_us']:8.1f} (median {line['plain_median_us']:.1f})  {line['times_faster']} x",
            flush=True,
        )

    rows = options.rows
    for batch in options.batches:
        build = lambda p, b=batch: gdn_step(b, rows, p)  # noqa: E731
        report(measure("gdn", GDN_LAYERS, build, options.seconds), batch=batch)
        for context in options.contexts:
            build = lambda p, b=batch, c=context: attention_step(b, rows, c, p)  # noqa: E731
            line = measure("attention", ATTENTION_LAYERS, build, options.seconds)
            report(line, batch=batch, context=context)


if __name__ == "__main__":
    main()
