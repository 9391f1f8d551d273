"""What a windowed row costs: the same at any length of its sequence. Oracle: a clock."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_oracle import CPU, PLAIN, rows_of

from onecat_jax.custom_calls.paged_attention import attend

ROWS, HEADS, KV_HEADS, DIM, WINDOW, PAGE = 8, 4, 2, 128, 512, 16
RING = (WINDOW + ROWS) // PAGE + 2
CONTEXTS = (1024, 4096, 32768)
REPEATS = 300


def block(policy):
    """A draft block's attention over a ring of pages; tables are as wide for short contexts as for long ones."""
    key = jax.random.key(0)
    k_pages, v_pages = jax.random.normal(key, (2, RING, PAGE, KV_HEADS, DIM))
    q = jax.random.normal(key, (1, ROWS, HEADS, DIM))
    table = jnp.arange(-(-(CONTEXTS[-1] + ROWS) // PAGE), dtype=jnp.int32)[None] % RING
    count = jnp.full(1, ROWS, jnp.int32)

    @jax.jit
    def run(k_pages, v_pages, start):
        rows = rows_of(table, start, count)
        how = {"scale": DIM**-0.5, "window": WINDOW, "causal": False}
        return attend(q, k_pages, v_pages, rows, 0, policy=policy, **how)

    return lambda start: jax.block_until_ready(run(k_pages, v_pages, start))


@pytest.mark.slow
@pytest.mark.parametrize("policy", [CPU, PLAIN], ids=["handler", "plain"])
def test_the_time_of_a_draft_block_does_not_grow_with_the_context(policy):
    """Lengths take turns, so that a busy machine disturbs all of them alike, and the best of each counts."""
    run = block(policy)
    starts = {n: jnp.full(1, n, jnp.int32) for n in CONTEXTS}
    times = {n: [] for n in CONTEXTS}
    for repeat in range(REPEATS + 3):
        for n, start in starts.items():
            begin = time.perf_counter()
            run(start)
            if repeat >= 3:
                times[n].append(1e6 * (time.perf_counter() - begin))
    best = {n: min(t) for n, t in times.items()}
    figures = {n: f"best {best[n]:.0f} us, median {np.median(t):.0f}" for n, t in times.items()}
    assert max(best.values()) <= 1.25 * min(best.values()), figures
