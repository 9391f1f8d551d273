"""Values of attention over pages. Oracle: attention in float64 over the unpaged keys (attention_oracle.py).

Everything that a sequence doesn't own is NaN: unused pages, the rest of a last page, page ids beyond the length.
"""

import attention_oracle as oracle
import numpy as np
import pytest
from attention_oracle import CPU, PLAIN, random_batch, run

TOLERANCE = 2e-5  # of the largest value, float32 rows
PAGE = 16


def check(x: oracle.Batch, found: np.ndarray, tolerance: float = TOLERANCE) -> None:
    for b, count in enumerate(x.count):
        assert not found[b, count:].any()
        if count == 0:
            continue
        want = oracle.attention(
            x.q[b, :count], x.keys[b], x.values[b], int(x.start[b]), x.q.shape[-1] ** -0.5
        )
        assert np.abs(found[b, :count] - want).max() <= tolerance * np.abs(want).max()


@pytest.mark.parametrize("heads", [(1, 1), (3, 3), (4, 2), (6, 2), (24, 4), (12, 1), (64, 1)])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_query_groups_and_head_dims(heads, dim):
    for width in (1, 5):
        x = random_batch([77, 130, 5], width=width, heads=heads, dim=dim)
        check(x, run(x))


@pytest.mark.parametrize("page", [1, 16, 48, 64, 256])
def test_lengths_at_page_and_tile_borders(page):
    lengths = [1, PAGE - 1, PAGE, PAGE + 1, 63, 64, 65, 127, 128, 129, 257, 509]
    x = random_batch(lengths, page=page, dim=32)
    check(x, run(x))


def test_long_sequences():
    x = random_batch([5000, 4999, 3989, 1021], dim=64, heads=(6, 1))
    check(x, run(x))


@pytest.mark.parametrize("cache", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_narrow_caches_and_rows_are_expanded_exactly(cache, dtype):
    for width in (1, 4):
        x = random_batch([19, 150, 64], width=width, cache=cache, dtype=dtype, dim=48)
        check(x, run(x))


@pytest.mark.parametrize("heads", [(4, 2), (12, 1)])
def test_prefill_rows(heads):
    x = random_batch([200, 333, 7], width=130, count=[130, 100, 7], heads=heads)
    check(x, run(x))


def test_plain_jax_agrees_with_the_oracle():
    for width in (1, 16, 40):
        x = random_batch(
            [16, 100, 40, 0], width=width, count=[min(width, n) for n in (16, 70, 40, 0)]
        )
        x.table[x.table < 0] = 0
        check(x, run(x, PLAIN))


def test_rows_that_are_not_real_are_zero():
    x = random_batch([30, 9, 0, 44], count=[2, 0, 0, 4], width=4)
    found = run(x)
    check(x, found)
    assert not found[1].any()
    assert not found[2].any()


@pytest.mark.parametrize("policy", [CPU, PLAIN], ids=["handler", "plain"])
def test_huge_logits_neither_overflow_nor_lose_the_winner(policy):
    x = random_batch([200], heads=(2, 1))
    x.q[:] *= 1e4
    x.table[x.table < 0] = 0
    check(x, run(x, policy), 1e-3)


def test_equal_keys_average_the_values():
    x = random_batch([321], heads=(2, 1))
    x.q[:] = 0
    found = run(x)
    mean = x.values[0].astype(np.float64).mean(0)
    assert np.abs(found[0, 0] - mean).max() <= 1e-6


def test_a_nan_among_the_seen_keys_reaches_the_output():
    x = random_batch([40], heads=(2, 2))
    x.k_pages[x.first + x.table[0, 1], 3, 1] = np.nan
    found = run(x)
    assert np.isnan(found[0, 0, 1]).all()
    assert np.isfinite(found[0, 0, 0]).all()
