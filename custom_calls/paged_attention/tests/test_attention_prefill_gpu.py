"""Prefill on GPUs, by both bodies (see test_attention_gpu.py for what that proves).

Oracle: attention in float64 over the unpaged keys (attention_oracle.py); for bits, the same row in other surroundings. What no
row sees is NaN, with page ids outside the cache.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest
from attention_oracle import Batch, bits, check_rows, random_batch, run

from onecat_jax.custom_calls.dispatch import Policy

pytestmark = pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")

KERNELS = "prefill"
EACH_CACHE = pytest.mark.parametrize("cache", ["float16", "float8_e4m3fn", "float8_e5m2"])
EITHER = pytest.mark.parametrize("causal", [True, False], ids=["causal", "whole"])


def batch(lengths: list[int], *, cache: str = "float16", **how) -> Batch:
    return random_batch(
        lengths, cache=cache, dtype="float16", **{"heads": (6, 1), "dim": 256, **how}
    )


@EACH_CACHE
@pytest.mark.parametrize("heads", [(1, 1), (6, 1), (8, 2), (12, 1)])
@pytest.mark.parametrize("dim", [128, 256])
def test_query_groups_head_dims_and_caches(policy, cache, heads, dim):
    x = batch([333, 17, 129], cache=cache, width=17, heads=heads, dim=dim)
    check_rows(x, run(x, policy))


def test_lengths_and_rows_at_page_tile_and_block_borders(policy):
    for width in (17, 127, 128, 129, 300):
        lengths = [width, width + 1, width + 15, width + 64, 509]
        x = batch(lengths, width=width, heads=(2, 1), dim=128)
        check_rows(x, run(x, policy))


@pytest.mark.parametrize("page", [16, 48, 256, 2048])
def test_page_sizes(policy, page):
    x = batch([3989, 2049, 100], page=page, width=70, heads=(2, 1))
    check_rows(x, run(x, policy))


@EACH_CACHE
@EITHER
def test_windows_and_whole_blocks(policy, cache, causal):
    """Wider than some windows, so that each row sees keys that others don't."""
    for window in (None, 1, 50, 64, 300, 100_000):
        x = batch([700, 333, 7], cache=cache, width=200, count=[200, 150, 7], heads=(4, 2), dim=128)
        seen = x if window is None else x.forgotten(window, -900)
        check_rows(x, run(seen, policy, window=window, causal=causal), window, causal)


def test_rows_that_see_nothing_are_zero(policy):
    x = batch([300, 40, 0], width=100, count=[100, 20, 0])
    check_rows(x, run(x, policy))
    assert not run(x, policy, window=0).any()


def test_huge_logits_neither_overflow_nor_lose_the_winner(policy):
    x = batch([400], width=40)
    x.q[:] *= np.float16(1e3)
    check_rows(x, run(x, policy))


@EACH_CACHE
@pytest.mark.parametrize("window", [None, 100])
def test_rows_have_the_same_bits_in_chunks_of_any_length_and_any_batch(policy, cache, window):
    x = batch([700, 1000], cache=cache, width=300)
    together = run(x, policy, window=window)
    for first, count in ((0, 17), (100, 64), (77, 200)):
        arrays = {"start": x.start + first, "count": np.full(2, count, np.int32)}
        part = replace(x, q=x.q[:, first : first + count], **arrays)
        found = run(part, policy, window=window)
        assert np.array_equal(bits(found), bits(together[:, first : first + count]))
    assert np.array_equal(bits(run(x.rows([1]), policy, window=window)), bits(together[1:]))


def test_runs_repeat_bit_by_bit(policy):
    x = batch([2000, 130], width=130)
    first = run(x, policy)
    assert all(np.array_equal(bits(run(x, policy)), bits(first)) for _ in range(20))


def test_float32_caches_take_the_library():
    x = batch([100], cache="float32", width=40, count=[40])
    x.table[x.table < 0] = 0
    x = replace(x, k_pages=np.nan_to_num(x.k_pages), v_pages=np.nan_to_num(x.v_pages))
    check_rows(x, run(x, Policy(strict=True)))


def test_operands_of_another_shape_are_refused_with_numbers(policy):
    x = batch([300], width=20)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"start and count must be \[1\], one is"):
        run(replace(x, count=np.array([2, 2], np.int32)), policy)
    check_rows(x, run(x, policy))
