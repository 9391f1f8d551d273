"""Both GPU bodies on whatever GPU is present: its own, and the sm_70 one as PTX that the driver translates.

Oracle: attention in float64 over the unpaged keys (attention_oracle.py); for bits, the same row in other surroundings. What no
row sees is NaN, with page ids outside the cache. On GPUs without m8n8k4 hardware the sm_70 body is emulated: its values and
indexing are proved here, its speed and the last bits of Volta's tensor cores are not.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_oracle import Batch, bits, check_rows, random_batch, repaged, rows_of, run
from jax import lax

from onecat_jax.custom_calls.paged_attention import attend
from onecat_jax.custom_calls.paged_attention.specs import CACHES, SPECS

pytestmark = pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")

KERNELS = "attend"
EACH_CACHE = pytest.mark.parametrize("cache", CACHES)
BORDERS = [1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 509]


def batch(lengths: list[int], *, cache: str = "float16", **how) -> Batch:
    how = {"heads": (12, 2), "dim": 256, **how}
    return random_batch(lengths, cache=cache, dtype="float16", **how)


def part(x: Batch, first: int, count: int) -> Batch:
    """Some of the new rows, the rest of the block staying in the cache."""
    arrays = {"start": x.start + first, "count": np.full(len(x.q), count, np.int32)}
    return replace(x, q=x.q[:, first : first + count], **arrays)


# ---- values


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_values_over_the_table(policy, spec):
    for cache in CACHES:
        for width in (1, spec.rows):
            x = batch([77, 1, 300], cache=cache, width=width, heads=spec.heads, dim=spec.dim)
            check_rows(x, run(x, policy))


@EACH_CACHE
@pytest.mark.parametrize("dim", [128, 256])
def test_lengths_at_page_and_tile_borders(policy, cache, dim):
    for width in (1, 7):
        x = batch(BORDERS, cache=cache, dim=dim, width=width)
        check_rows(x, run(x, policy))


@pytest.mark.parametrize("page", [16, 48, 256, 1568, 2048])
def test_page_sizes(policy, page):
    for cache in ("float16", "float8_e4m3fn"):
        x = batch([3989, 2049, 16], cache=cache, page=page, width=3)
        check_rows(x, run(x, policy))


def test_every_number_of_rows_and_of_query_heads(policy):
    for width in range(1, 17):
        x = batch([width, 40, 200], width=width)
        check_rows(x, run(x, policy))
    for group in range(1, 13):
        x = batch([40, 200], width=16, heads=(2 * group, 2), dim=128)
        check_rows(x, run(x, policy))


@EACH_CACHE
def test_a_quarter_of_a_million_tokens(policy, cache):
    x = batch([262_144], cache=cache, width=2, heads=(2, 1), page=2048, spare=0)
    check_rows(x, run(x, policy))


def test_rows_that_are_not_real_are_zero(policy):
    x = batch([30, 9, 0, 444, 4], count=[2, 0, 0, 4, 4], width=4)
    check_rows(x, run(x, policy))


def test_huge_logits_neither_overflow_nor_lose_the_winner(policy):
    x = batch([200, 4100], heads=(6, 1), width=2)
    x.q[:] *= np.float16(1e3)
    check_rows(x, run(x, policy))


def test_a_dominant_key_and_equal_keys(policy):
    x = batch([4100], heads=(6, 1), width=2)
    size = x.k_pages.shape[1]
    x.keys[0][1234] = 8 * x.q[0, 0, 0]
    x.k_pages[x.first + x.table[0, 1234 // size], 1234 % size] = x.keys[0][1234]
    check_rows(x, run(x, policy))
    x.q[:] = 0
    check_rows(x, run(x, policy))


def test_outliers_among_the_values(policy):
    x = batch([3000], heads=(6, 1), width=4)
    at = np.random.default_rng(0).choice(3000, 30, replace=False)
    size = x.v_pages.shape[1]
    x.values[0][at] *= np.float16(100)
    x.v_pages[x.first + x.table[0, at // size], at % size] = x.values[0][at]
    check_rows(x, run(x, policy))


# ---- windows and draft blocks


@EACH_CACHE
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "whole"])
def test_windows_and_whole_blocks(policy, cache, causal):
    for window in (None, 1, 13, 16, 61, 64, 257, 100_000):
        x = batch(BORDERS, cache=cache, width=8, heads=(8, 2), dim=128)
        seen = x if window is None else x.forgotten(window, -900)
        check_rows(x, run(seen, policy, window=window, causal=causal), window, causal)


def test_a_draft_window_far_into_a_sequence(policy):
    for length in (2047, 2055, 30_011):
        x = batch([length], width=8, heads=(8, 2), dim=128, page=256).forgotten(2048, -900)
        check_rows(x, run(x, policy, window=2048, causal=False), 2048, causal=False)


def test_rows_that_see_nothing_are_zero(policy):
    x = batch([30, 100], width=4)
    assert not run(x, policy, window=0).any()
    whole = run(x, policy, window=0, causal=False)
    assert whole[:, :3].any(axis=(2, 3)).all()
    assert not whole[:, 3].any()


# ---- bits


@EACH_CACHE
@pytest.mark.parametrize("dim", [128, 256])
@pytest.mark.parametrize("window", [None, 70])
def test_verify_rows_equal_decode_rows(policy, cache, dim, window):
    x = batch([70, 1000, 5003], cache=cache, dim=dim, width=16, heads=(12, 2))
    together = run(x, policy, window=window)
    for first, count in ((0, 1), (5, 1), (15, 1), (3, 2), (8, 8), (2, 11)):
        found = run(part(x, first, count), policy, window=window)
        assert np.array_equal(bits(found), bits(together[:, first : first + count]))


def test_the_last_rows_of_a_whole_block_equal_those_alone(policy):
    x = batch([70, 40, 3000], width=8, heads=(8, 2), dim=128)
    together = run(x, policy, window=2048, causal=False)
    for first in (1, 4, 7):
        found = run(part(x, first, 8 - first), policy, window=2048, causal=False)
        assert np.array_equal(bits(found), bits(together[:, first:]))


def test_batch_order_pages_and_table_width_change_no_bit(policy):
    x = batch([770, 130, 5, 6400, 300, 2], width=2)
    whole = run(x, policy)
    for order in ([0], [3], [5, 4, 3, 2, 1, 0], [2, 4], [3] * 40):
        assert np.array_equal(bits(run(x.rows(order), policy)), bits(whole[order]))
    for page in (32, 256):
        assert np.array_equal(bits(run(repaged(x, page), policy)), bits(whole))


@EACH_CACHE
def test_a_hundred_runs_give_the_same_bits(policy, cache):
    x = batch([770, 6400], cache=cache, width=8)
    first = run(x, policy)
    assert all(np.array_equal(bits(run(x, policy)), bits(first)) for _ in range(100))


def test_a_recorded_loop_over_layers_follows_changing_inputs(policy):
    x = batch([300, 77], width=2)
    pages = x.k_pages.shape[0]
    k, v = (jnp.asarray(np.nan_to_num(np.concatenate([a, -a]))) for a in (x.k_pages, x.v_pages))
    table = jnp.asarray(np.maximum(x.table, 0))

    def layer(q, k, v, start, i):
        rows = rows_of(table, start, jnp.asarray(x.count))
        return attend(q, k, v, rows, x.first + i * pages, scale=1 / 16, policy=policy)

    @jax.jit
    def loop(q, k, v, start):
        def body(i, out):
            return lax.dynamic_update_index_in_dim(out, layer(q, k, v, start, i), i, 0)

        return lax.fori_loop(0, 2, body, jnp.zeros((2, *q.shape), jnp.float32))

    for seed in range(8):
        rng = np.random.default_rng(seed)
        start = jnp.asarray(x.start - rng.integers(0, 40, 2), jnp.int32)
        q = jnp.asarray(rng.standard_normal(x.q.shape), jnp.float16)
        found = np.asarray(loop(q, k, v, start))
        for i in range(2):
            alone = np.asarray(layer(q, k, v, start, i))
            assert np.array_equal(bits(found[i]), bits(alone))


# ---- refusals


def test_pages_outside_the_cache_cause_no_fault(policy):
    x = batch([300], width=2)
    for page in (-(2**31), 2**31 - 1, 10**6):
        x.table[:] = page
        run(x, policy)
    fine = batch([300], width=2)
    check_rows(fine, run(fine, policy))


def test_operands_of_another_shape_are_refused_with_numbers(policy):
    x = batch([300], width=2)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"start and count must be \[1\], one is"):
        run(replace(x, count=np.array([2, 2], np.int32)), policy)
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"the table is \[2, 22\], must be \[1, P\]"
    ):
        run(replace(x, table=np.repeat(x.table, 2, 0)), policy)
    check_rows(x, run(x, policy))
