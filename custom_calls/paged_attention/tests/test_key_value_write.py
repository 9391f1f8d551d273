"""Writing keys and values into pages. Oracle: numpy's own rounding (ml_dtypes), and plain JAX bit by bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_oracle import CPU, PLAIN, TYPES, bits, random_batch, write

from onecat_jax.custom_calls.paged_attention.pages import to_storage


def new_rows(x, dtype: str, seed: int = 0):
    """k and v with values of every size, infinities, NaN and both zeros among them."""
    rng = np.random.default_rng(seed)
    shape = (*x.q.shape[:2], x.k_pages.shape[2], x.k_pages.shape[3])
    rows = []
    for _ in "kv":
        a = rng.standard_normal(shape) * 10.0 ** rng.uniform(-9, 6, shape)
        odd = rng.random(shape) < 0.05
        a[odd] = rng.choice(
            [0.0, -0.0, np.inf, -np.inf, np.nan, 448.0, 464.0, 57344.0, 65520.0], int(odd.sum())
        )
        with np.errstate(over="ignore"):
            rows.append(a.astype(TYPES[dtype]))
    return rows


@pytest.mark.parametrize("cache", list(TYPES))
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_handler_stores_the_bits_of_plain_jax(cache, dtype):
    x = random_batch([17, 64, 9, 40], count=[5, 1, 0, 16], width=16, cache=cache)
    x.table[x.table < 0] = 0
    k, v = new_rows(x, dtype)
    for ours, plain in zip(write(x, k, v, CPU), write(x, k, v, PLAIN), strict=True):
        nan = np.isnan(ours.astype(np.float32)) & np.isnan(plain.astype(np.float32))
        assert np.array_equal(bits(np.where(nan, 0, ours)), bits(np.where(nan, 0, plain)))


@pytest.mark.parametrize("policy", [CPU, PLAIN], ids=["handler", "plain"])
def test_each_token_lands_in_its_place_and_nothing_else_changes(policy):
    x = random_batch([17, 64, 9, 40], count=[5, 1, 0, 16], width=16)
    x.table[x.table < 0] = 0
    k, v = (
        np.random.default_rng(3).standard_normal((4, 16, 2, 64)).astype(np.float32) for _ in "kv"
    )
    want = [x.k_pages.copy(), x.v_pages.copy()]
    for cache, new in zip(want, (k, v), strict=True):
        for b in range(4):
            for t in range(x.count[b]):
                at = x.start[b] + t
                cache[x.first + x.table[b, at // 16], at % 16] = new[b, t]
    for found, expected in zip(write(x, k, v, policy), want, strict=True):
        assert np.array_equal(bits(found), bits(expected))


@pytest.mark.parametrize("cache", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_every_half_way_case_rounds_as_in_plain_jax(cache):
    """All float16 values, their midpoints with the next one, and the float32 neighbours of those."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middle = (halves[:-1] + halves[1:]) / 2
    values = np.concatenate(
        [a for m in (halves, middle) for a in (m, np.nextafter(m, 0), np.nextafter(m, 1e9))]
    )
    values = np.concatenate([values, -values]).astype(np.float32)
    values = np.resize(values, (1, 16, -(-values.size // (16 * 64)), 64))
    heads = values.shape[2]
    x = random_batch([16], count=[16], width=16, heads=(heads, heads), dim=64, cache=cache)
    k, _ = write(x, values, values)
    stored = k[x.first + x.table[0, 0]]
    with jax.default_device(jax.devices("cpu")[0]):
        want = np.asarray(to_storage(jnp.asarray(values[0]), jnp.dtype(TYPES[cache])))
    assert np.array_equal(bits(stored), bits(want))
