"""Values of attention with a window, causal or not. Oracle: attention in float64 over the unpaged keys (attention_oracle.py).

Everything that no row sees is NaN: unused pages, the rest of a last page, and all positions before the window. Pages that hold
only such positions have ids that would be refused (handler) or those of a page of NaN (plain JAX).
Not covered: how the bits depend on the surroundings (test_attention_window_bits.py) and rings (test_attention_rings.py).
"""

import attention_oracle as oracle
import numpy as np
import pytest
from attention_oracle import CPU, PLAIN, Batch, random_batch, run

TOLERANCE = 2e-5  # of the largest value, float32 rows
PAGE = 16
WINDOWS = (1, 2, 13, PAGE, 61, 64, 257, 100_000)
BORDERS = [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 257, 509]
EITHER = pytest.mark.parametrize("causal", [True, False], ids=["causal", "whole"])
BOTH = pytest.mark.parametrize("policy", [CPU, PLAIN], ids=["handler", "plain"])


def check(x: Batch, policy, window: int | None, causal: bool) -> None:
    page_id = -x.first if policy is PLAIN else -900  # the first page of the array is nobody's
    seen = x if window is None else x.forgotten(window, page_id)
    seen.table[seen.table < 0] = page_id
    found = run(seen, policy, window=window, causal=causal)
    for b, count in enumerate(x.count):
        assert not found[b, count:].any()
        if count == 0:
            continue
        row = (x.q[b, :count], x.keys[b], x.values[b], int(x.start[b]), x.q.shape[-1] ** -0.5)
        want = oracle.attention(*row, window, causal)
        assert np.abs(found[b, :count] - want).max() <= TOLERANCE * np.abs(want).max(), (b, window)


@EITHER
@pytest.mark.parametrize("window", WINDOWS)
def test_windows_at_page_and_tile_borders(window, causal):
    for width in (1, 8):
        check(random_batch(BORDERS, width=width, dim=32), CPU, window, causal)


@EITHER
def test_plain_jax_at_page_and_tile_borders(causal):
    lengths = [1, 17, 64, 255, 256, 257, 271, 272, 509, 513, 530]
    for window in (1, 16, 257, 100_000):
        check(random_batch(lengths, width=8, dim=32), PLAIN, window, causal)
    check(random_batch(lengths, width=1, dim=32), PLAIN, 13, causal)


@EITHER
@pytest.mark.parametrize("heads", [(1, 1), (3, 3), (4, 2), (6, 1), (24, 4), (12, 1), (64, 1)])
def test_query_groups_and_head_dims(heads, causal):
    for dim in (64, 128, 256):
        check(random_batch([77, 130, 5], width=7, heads=heads, dim=dim), CPU, 31, causal)


@EITHER
@pytest.mark.parametrize("cache", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_narrow_caches_are_expanded_exactly(cache, dtype, causal):
    x = random_batch([19, 150, 64], width=4, cache=cache, dtype=dtype, dim=48)
    for window in (None, 3, 70):
        check(x, CPU, window, causal)


@EITHER
@pytest.mark.parametrize("page", [1, 48, 64, 256])
def test_page_sizes(page, causal):
    check(random_batch([1, 63, 65, 300, 509], page=page, width=5, dim=32), CPU, 50, causal)


@EITHER
def test_every_number_of_rows_of_a_draft_or_verify_block(causal):
    for width in range(1, 17):
        check(random_batch([width, 40, 200], width=width, dim=32), CPU, 37, causal)


@BOTH
@EITHER
def test_prefill_rows(causal, policy):
    """Wider than the window, so that each row sees keys that others don't."""
    x = random_batch([700, 333, 7], width=200, count=[200, 150, 7], dim=32)
    for window in (None, 1, 50, 300):
        check(x, policy, window, causal)


@BOTH
@EITHER
def test_a_batch_of_mixed_rows(causal, policy):
    x = random_batch([30, 9, 0, 444, 2000, 8], count=[2, 0, 0, 8, 5, 8], width=8)
    for window in (None, 3, 100):
        check(x, policy, window, causal)


@BOTH
def test_rows_that_see_nothing_are_zero(policy):
    x = random_batch([30, 100], width=4)
    x.table[x.table < 0] = 0
    assert not run(x, policy, window=0).any()
    whole = run(x, policy, window=0, causal=False)
    assert whole[:, :3].any(axis=(2, 3)).all()  # the later rows of the block
    assert not whole[:, 3].any()


@BOTH
@EITHER
def test_a_nan_inside_the_window_reaches_the_output_and_one_before_it_does_not(causal, policy):
    x = random_batch([100], heads=(2, 2))
    x.table[x.table < 0] = 0
    clean = run(x, policy, window=40, causal=causal)
    for position, reaches in ((59, False), (60, True)):
        x.k_pages[x.first + x.table[0, position // PAGE], position % PAGE] = np.nan
        found = run(x, policy, window=40, causal=causal)
        assert np.isnan(found).any() == reaches
        assert reaches or np.array_equal(found, clean)
