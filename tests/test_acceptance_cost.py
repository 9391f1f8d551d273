"""What acceptance costs next to sampling, on CPU: one request, 8 rows of 8,192 ids. Slow: a busy machine decides otherwise.

Times are the least of many, in microseconds; pytest -s shows them. Not covered: GPUs.
"""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onecat_jax.sampling import Drafts, accept, request_row, sample, stack_rows
from onecat_jax.sampling_params import SamplingParams

WIDTH, SIZE, CANDIDATES, RUNS = 8, 8192, 16, 200
pytestmark = pytest.mark.slow


def least(run, *args, **kwargs) -> float:
    times = []
    jax.block_until_ready(run(*args, **kwargs))
    for _ in range(RUNS):
        start = time.perf_counter()
        jax.block_until_ready(run(*args, **kwargs))
        times.append(time.perf_counter() - start)
    return min(times) * 1e6


def likely_drafts(x: np.ndarray) -> Drafts:
    """The likeliest ids of each row, drawn from their own softmax: the first of each row."""
    ids = np.argsort(-x, axis=2)[:, :-1, :CANDIDATES].astype(np.int32)
    log_q = jax.nn.log_softmax(jnp.asarray(np.take_along_axis(x[:, :-1], ids, axis=2)))
    return Drafts(ids[..., 0], ids, log_q, np.full(1, WIDTH - 1, np.int32))


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"temperature": 0.0}, 1.6),
        ({"temperature": 1.0}, 1.0),
        ({"temperature": 0.7, "top_k": 20, "top_p": 0.8}, 1.6),
    ],
    ids=str,
)
def test_a_round_costs_little_more_than_sampling_as_many_rows(settings, most):
    x = np.random.default_rng(0).normal(size=(1, WIDTH, SIZE)).astype(np.float32) * 2
    drafts, position = likely_drafts(x), np.full(1, 5, np.int32)
    fed = np.concatenate([np.zeros((1, 1), np.int32), drafts.tokens], axis=1)
    rows = [request_row(SamplingParams(**settings), (), seed=1, prompt_length=1)] * WIDTH
    one, all_rows = stack_rows(rows[:1]), stack_rows(rows)
    fixed = {"vocab_size": SIZE - 5, "banned": jnp.zeros(SIZE, bool)}
    accepting, sampling = jax.jit(partial(accept, **fixed)), jax.jit(partial(sample, **fixed))
    x = jnp.asarray(x)
    arguments = jax.device_put((x, drafts, one, position))
    spent = least(accepting, *arguments, fed=jnp.asarray(fed))
    single = least(sampling, x[:, 0], one, jnp.asarray(position))
    eight = least(sampling, x[0], all_rows, jnp.arange(WIDTH))
    argmax = least(jax.jit(lambda rows: jnp.argmax(rows, axis=-1)), x[0])
    print(
        f"\n{settings}: accept {spent:.0f}, sample 1 row {single:.0f}, sample {WIDTH} rows {eight:.0f},"
        f" argmax {argmax:.0f} us"
    )
    assert spent < most * eight + 100
