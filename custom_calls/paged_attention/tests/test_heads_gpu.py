"""Norm, rotary embedding and writing in one call on GPUs. Oracle: the same in float64 numpy, written here.

Not covered: columns that don't lie in the row beyond one case; a layer's pages are those of random_batch (attention_oracle.py).
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_oracle import TYPES, Batch, bits, random_batch, rows_of

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.paged_attention import HeadLayout, takes_heads, write_heads

pytestmark = pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")

EPS = 1e-6
HALF_STEP = {  # of the cache's rounding, relative
    "float32": 6e-4,  # rows are float16 before they are stored
    "float16": 6e-4,
    "bfloat16": 5e-3,
    "float8_e4m3fn": 0.064,
    "float8_e5m2": 0.127,
}


def layout_of(heads: int, kv_heads: int, dim: int) -> HeadLayout:
    return HeadLayout(heads, kv_heads, dim, 2 * dim, 2 * heads * dim, (2 * heads + kv_heads) * dim)


def normed(x: np.ndarray, norm: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * (1 + norm)


def turned(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = cos[:, :, None], sin[:, :, None]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)


@partial(jax.jit, static_argnames="layout", donate_argnums=(1, 2))
def _write(qkv, k_pages, v_pages, table, start, count, first, norms, rotary, scales, layout):
    rows, how = rows_of(table, start, count), {"eps": EPS, "scales": scales}
    return write_heads(
        qkv, k_pages, v_pages, rows, first, layout, norms=norms, rotary=rotary, **how
    )


def run(x: Batch, qkv, norms, rotary, scales, layout):
    where = (jnp.asarray(x.table), jnp.asarray(x.start), jnp.asarray(x.count), jnp.int32(x.first))
    pages = (jnp.asarray(x.k_pages), jnp.asarray(x.v_pages))
    found = _write(jnp.asarray(qkv), *pages, *where, norms, rotary, scales, layout)
    return tuple(np.asarray(a) for a in found)


def inputs(x: Batch, layout: HeadLayout, half: int):
    rng = np.random.default_rng(half)
    shape = (*x.q.shape[:2], layout.v_at + layout.kv_heads * layout.dim)
    qkv = (3 * rng.standard_normal(shape)).astype(np.float16)
    norms = tuple(0.3 * rng.standard_normal(layout.dim).astype(np.float32) for _ in "qk")
    angle = rng.uniform(0, 6, (*x.q.shape[:2], half)).astype(np.float32)
    return qkv, norms, (np.cos(angle), np.sin(angle))


@pytest.mark.parametrize("cache", list(TYPES))
@pytest.mark.parametrize(("dim", "half"), [(128, 64), (256, 32), (256, 128), (256, 8)])
@pytest.mark.parametrize("scales", [None, (0.25, 3.0)])
def test_values(cache, dim, half, scales):
    layout = layout_of(6, 2, dim)
    x = random_batch([17, 64, 9, 40], count=[5, 1, 0, 16], width=16, heads=(6, 2), dim=dim)
    x.table[x.table < 0] = 0
    pages = tuple(np.zeros(x.k_pages.shape, TYPES[cache]) for _ in "kv")
    x = Batch(**{**vars(x), "k_pages": pages[0], "v_pages": pages[1]})
    qkv, norms, rotary = inputs(x, layout, half)
    factors = None if scales is None else jnp.asarray(scales, jnp.float32)
    q, keys, values = run(x, qkv, norms, rotary, factors, layout)
    wide = qkv.astype(np.float64)
    heads = wide[..., : layout.k_at].reshape(*wide.shape[:2], 6, 2, dim)[..., 0, :]
    k = wide[..., layout.k_at : layout.v_at].reshape(*wide.shape[:2], 2, dim)
    v = wide[..., layout.v_at :].reshape(*wide.shape[:2], 2, dim)
    s = scales or (1.0, 1.0)
    want_q = turned(normed(heads, norms[0]), *rotary) * s[0]
    want = [(keys, turned(normed(k, norms[1]), *rotary) / s[0]), (values, v / s[1])]
    assert np.allclose(q.astype(np.float64), want_q, rtol=6e-4, atol=1e-4)
    for flat, rows in want:
        left = flat.astype(np.float64)
        for b, count in enumerate(x.count):
            at = x.start[b] + np.arange(count)
            where = (x.first + x.table[b, at // 16], at % 16)
            assert np.allclose(left[where], rows[b, :count], rtol=HALF_STEP[cache], atol=2e-3)
            left[where] = 0
        assert not left.any()  # nothing else was written


def test_a_row_has_the_same_bits_in_any_batch():
    layout = layout_of(4, 1, 256)
    x = random_batch([17, 64, 33], width=2, heads=(4, 1), dim=256, cache="float16")
    qkv, norms, rotary = inputs(x, layout, 32)
    q, keys, _ = run(x, qkv, norms, rotary, None, layout)
    one = x.rows([1])
    found = run(one, qkv[1:2], norms, tuple(a[1:2] for a in rotary), None, layout)
    assert np.array_equal(bits(found[0]), bits(q[1:2]))
    at = (x.first + x.table[1, 3], slice(14, 16))
    assert np.array_equal(bits(found[1][at]), bits(keys[at]))


def test_columns_outside_the_row_are_refused_with_numbers():
    layout = HeadLayout(4, 1, 256, 512, 2048, 2304)
    x = random_batch([17], width=1, heads=(4, 1), dim=256, cache="float16")
    qkv, norms, rotary = inputs(x, layout_of(4, 1, 256), 32)
    with pytest.raises(
        jax.errors.JaxRuntimeError, match="values at 2304 don't lie in rows of 2304"
    ):
        run(x, qkv[..., :2304], norms, rotary, None, layout)


def test_who_is_taken():
    layout = layout_of(4, 1, 256)
    assert takes_heads(layout, 16, jnp.float16, jnp.float8_e4m3fn, Policy())
    assert not takes_heads(layout, 16, jnp.float32, jnp.float16, Policy(strict=True))
    assert not takes_heads(layout_of(4, 1, 64), 16, jnp.float16, jnp.float16, Policy())
