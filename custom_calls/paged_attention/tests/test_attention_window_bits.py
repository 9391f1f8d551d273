"""What the bits of windowed and non-causal rows of the CPU handler depend on: their position and the keys that they see.

Oracle: the same call with other surroundings. Instruction sets and threads are in test_attention_bits.py.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest
from attention_oracle import PLAIN, Batch, random_batch, repaged, run

pytestmark = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="about the handler that runs on CPU"
)
EITHER = pytest.mark.parametrize("causal", [True, False], ids=["causal", "whole"])
LENGTHS = [77, 130, 8, 64, 300, 9]


def part(x: Batch, first: int, count: int) -> Batch:
    """Some of the new rows, the rest of the block staying in the cache."""
    arrays = {"start": x.start + first, "count": np.full(len(x.q), count, np.int32)}
    return replace(x, q=x.q[:, first : first + count], **arrays)


@EITHER
def test_a_row_has_the_same_bits_whatever_stands_beside_it(causal):
    x = random_batch(LENGTHS, width=8)
    alone = [run(x.rows([b]), window=50, causal=causal)[0] for b in range(6)]
    for order in ([0, 1], [5, 4, 3, 2, 1, 0], [2, 4]):
        found = run(x.rows(order), window=50, causal=causal)
        for place, b in enumerate(order):
            assert np.array_equal(found[place], alone[b])


@pytest.mark.parametrize("heads", [(4, 2), (12, 1), (40, 2)])
@pytest.mark.parametrize("window", [5, 64, 90])
def test_prefill_and_verify_rows_equal_decode_rows(window, heads):
    x = random_batch([70, 40, 200], width=40, heads=heads)
    together = run(x, window=window)
    for t in range(0, 40, 3):
        assert np.array_equal(run(part(x, t, 1), window=window)[:, 0], together[:, t]), t


@pytest.mark.parametrize("window", [None, 5, 64, 90])
def test_rows_of_a_whole_block_equal_those_of_its_last_rows_alone(window):
    """What a non-causal row sees ends with the call's last row, so only the ends of calls can be compared."""
    x = random_batch([70, 40, 200], width=40, heads=(12, 2))
    together = run(x, window=window, causal=False)
    for first in (1, 7, 32, 39):
        found = run(part(x, first, 40 - first), window=window, causal=False)
        assert np.array_equal(found, together[:, first:]), first


@EITHER
def test_a_window_beyond_the_first_token_is_no_window(causal):
    x = random_batch(LENGTHS, width=8)
    for policy in ({}, {"policy": PLAIN}):
        whole = run(x, causal=causal, **policy)
        for window in (300, 10**6, 2**40):
            assert np.array_equal(run(x, window=window, causal=causal, **policy), whole)


def test_the_last_row_of_a_block_is_a_causal_one():
    x = random_batch(LENGTHS, width=8)
    for window in (None, 50):
        causal, whole = (run(x, window=window, causal=c) for c in (True, False))
        assert np.array_equal(causal[:, -1], whole[:, -1])
        assert not np.array_equal(causal[:, 0], whole[:, 0])


@EITHER
def test_what_lies_before_the_window_changes_no_bit(causal):
    x = random_batch(LENGTHS, width=8)
    for window in (1, 17, 100):
        found = run(x.forgotten(window, -900), window=window, causal=causal)
        assert np.array_equal(found, run(x, window=window, causal=causal))


@EITHER
def test_page_numbers_page_size_and_table_width_change_no_bit(causal):
    x = random_batch([77, 130], width=8)
    wider = replace(x, table=np.pad(x.table, ((0, 0), (0, 9)), constant_values=-9))
    order = np.random.default_rng(0).permutation(len(x.k_pages) - x.first)
    caches = {}
    for name in ("k_pages", "v_pages"):
        pages = getattr(x, name).copy()
        pages[x.first + order] = pages[x.first :].copy()
        caches[name] = pages
    moved = replace(
        x, table=np.where(x.table < 0, x.table, order[x.table]).astype(np.int32), **caches
    )
    for other in (wider, moved, repaged(x, 32), repaged(x, 7)):
        found, want = (run(a, window=50, causal=causal) for a in (other, x))
        assert np.array_equal(found, want)
