"""Values of the linear, on whatever device is the default one.

Oracle: float64 numpy over weights decoded independently (linear_oracle.py). Bounds: float32 sums of at most 17408 products
stay below 3e-6 of the norm; a float16 result rounds once (5e-4); the expansion for many rows on a GPU rounds weights to
float16 as well. Not covered here: which bits come out (test_linear_bits.py).
"""

import jax
import jax.numpy as jnp
import linear_oracle as oracle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import Layer, LinearRoute, NVFP4Tensor, build_linear, linear
from onecat_jax.custom_calls.linear.specs import FAST_ROWS, ROWS, SPECS, LinearSpec

ON_GPU = jax.default_backend() == "gpu"
DTYPE = jnp.float16 if ON_GPU else jnp.float32  # what the handlers take
SUM_BOUND = 3e-6
HALF_BOUND = 5e-4
CHECKED_FEATURES = (
    512  # of large shapes, picked at random: decoding them in float64 is what takes time
)

FAST = [s for s in SPECS if "fast" in s.tags]
SLOW = [s for s in SPECS if "fast" not in s.tags]


def rows(rng: np.random.Generator, m: int, k: int) -> jax.Array:
    return jnp.asarray(rng.standard_normal((m, k)), DTYPE)


def check_nvfp4(spec: LinearSpec, counts: tuple[int, ...], policy: Policy = Policy()) -> None:
    rng = np.random.default_rng(spec.n * spec.k)
    layers = [[oracle.random_nvfp4(rng, spec.n, spec.k)] for _ in range(2)]
    weight = build_linear(layers, route=LinearRoute(policy), dtype=DTYPE)
    sample = np.sort(rng.choice(spec.n, min(spec.n, CHECKED_FEATURES), replace=False))
    expected = oracle.matrix(oracle.take(layers[1][0], sample)).T
    for m in counts:
        x = rows(rng, m, spec.k)
        y = linear(x, weight, Layer(1), out_dtype=jnp.float32, policy=policy)
        y = np.asarray(y)
        bound = HALF_BOUND if ON_GPU and m > 64 else SUM_BOUND
        assert np.isfinite(y).all()
        assert oracle.error(y[:, sample], np.asarray(x, np.float64) @ expected) < bound, (spec, m)


@pytest.mark.parametrize("spec", FAST, ids=lambda s: s.name)
def test_nvfp4_agrees_with_float64(spec):
    check_nvfp4(spec, FAST_ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("spec", SLOW, ids=lambda s: s.name)
def test_nvfp4_agrees_with_float64_over_the_whole_table(spec):
    check_nvfp4(spec, ROWS)


@pytest.mark.parametrize("stored", [jnp.float32, jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize(("n", "k"), [(16, 384), (100, 288), (5, 17), (33, 1043), (1, 1)])
def test_dense_agrees_with_float64_for_every_storage_and_any_shape(n, k, stored):
    rng = np.random.default_rng(n * k)
    layers = [[oracle.random_dense(rng, n, k)] for _ in range(3)]
    weight = build_linear(layers, route=LinearRoute(), dtype=stored)
    expected = np.asarray(weight.weight[2], np.float64).T
    for m in (1, 7, 8, 9, 70):
        x = jnp.asarray(rng.standard_normal((m, k)), stored)
        y = linear(x, weight, Layer(1, 1, 1), out_dtype=jnp.float32, policy=Policy())
        assert oracle.error(y, np.asarray(x, np.float64) @ expected) < SUM_BOUND


def test_dense_float16_subnormals_count():
    """XLA runs with subnormals flushed to zero; the handler must not."""
    weight = build_linear(
        [[oracle.DenseTensor(np.full((8, 16), 2.0**-24, np.float16))]],
        route=LinearRoute(),
        dtype=jnp.float16,
    )
    x = jnp.ones((1, 16), jnp.float16)
    y = linear(x, weight, Layer(0), out_dtype=jnp.float32, policy=Policy())
    assert (np.asarray(y) == 2.0**-20).all()


@pytest.mark.parametrize("out", [jnp.float32, jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("dtype", [DTYPE] if ON_GPU else [jnp.float32, jnp.float16, jnp.bfloat16])
def test_a_result_is_rounded_once_to_the_dtype_asked_for(dtype, out):
    rng = np.random.default_rng(5)
    layers = [[oracle.random_nvfp4(rng, 96, 288)]]
    weight = build_linear(layers, route=LinearRoute(), dtype=dtype)
    x = jnp.asarray(rng.standard_normal((4, 288)), dtype)
    exact = linear(x, weight, Layer(0), out_dtype=jnp.float32, policy=Policy())
    found = linear(x, weight, Layer(0), out_dtype=out, policy=Policy())
    assert found.dtype == out
    assert np.array_equal(np.asarray(found), np.asarray(exact.astype(out)))


def test_the_result_has_the_dtype_and_leading_axes_of_the_rows():
    rng = np.random.default_rng(6)
    weight = build_linear([[oracle.random_nvfp4(rng, 48, 64)]], route=LinearRoute(), dtype=DTYPE)
    y = linear(rows(rng, 6, 64).reshape(2, 3, 64), weight, Layer(0), policy=Policy())
    assert y.shape == (2, 3, 48)
    assert y.dtype == DTYPE
    assert linear(jnp.zeros((0, 64), DTYPE), weight, Layer(0), policy=Policy()).shape == (0, 48)


def test_both_routes_agree():
    rng = np.random.default_rng(7)
    layers = [[oracle.random_nvfp4(rng, 200, 544)] for _ in range(2)]
    x = rows(rng, 19, 544)
    results = []
    for backend in ("auto", "plain"):
        policy = Policy(backend)
        weight = build_linear(layers, route=LinearRoute(policy), dtype=DTYPE)
        results.append(linear(x, weight, Layer(1), out_dtype=jnp.float32, policy=policy))
    assert oracle.error(results[0], np.asarray(results[1], np.float64)) < SUM_BOUND


def test_fused_siblings_keep_their_own_global_scale():
    """Powers of two, so that every sibling's rows must come out exactly as if it stood alone."""
    rng = np.random.default_rng(8)
    siblings = [
        oracle.random_nvfp4(rng, n, 128, g) for n, g in ((24, 0.5), (8, 2.0**-9), (40, 16.0))
    ]
    x = rows(rng, 5, 128)
    fused = build_linear([siblings], route=LinearRoute(), dtype=DTYPE)
    y = linear(x, fused, Layer(0), out_dtype=jnp.float32, policy=Policy())
    alone = []
    for sibling in siblings:
        weight = build_linear([[sibling]], route=LinearRoute(), dtype=DTYPE)
        alone.append(linear(x, weight, Layer(0), out_dtype=jnp.float32, policy=Policy()))
    assert np.array_equal(np.asarray(y), np.concatenate(alone, axis=1))


def test_rows_of_zeros_give_positive_zeros_and_leave_neighbours_alone():
    rng = np.random.default_rng(9)
    weight = build_linear([[oracle.random_nvfp4(rng, 64, 96)]], route=LinearRoute(), dtype=DTYPE)
    x = rows(rng, 20, 96)
    holes = x.at[jnp.array([0, 7, 13])].set(0)
    whole = np.asarray(linear(x, weight, Layer(0), policy=Policy()))
    found = np.asarray(linear(holes, weight, Layer(0), policy=Policy()))
    kept = np.setdiff1d(np.arange(20), [0, 7, 13])
    assert np.array_equal(found[kept], whole[kept])
    assert (found[[0, 7, 13]] == 0).all()
    assert not linear(jnp.zeros_like(x), weight, Layer(0), policy=Policy()).any()


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 150),
    units=st.integers(1, 40),
    m=st.integers(1, 70),
    layers=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_nvfp4_agrees_with_float64_for_any_shape(n, units, m, layers, seed):
    rng = np.random.default_rng(seed)
    k = 32 * units
    stack = [[oracle.random_nvfp4(rng, n, k)] for _ in range(layers)]
    weight = build_linear(stack, route=LinearRoute(), dtype=DTYPE)
    x, at = rows(rng, m, k), int(rng.integers(layers))
    y = linear(x, weight, Layer(at), out_dtype=jnp.float32, policy=Policy())
    bound = HALF_BOUND if ON_GPU and m > 64 else SUM_BOUND
    # a single output may cancel to next to nothing: relative to the rows that it is made of
    assert oracle.product_error(y, x, oracle.matrix(stack[at][0])) < bound


def test_k_that_no_packed_layout_takes_runs_in_plain_jax():
    rng = np.random.default_rng(10)
    tensor = oracle.random_nvfp4(rng, 10, 48)
    weight = build_linear([[tensor]], route=LinearRoute(), dtype=DTYPE)
    assert weight.layout == "rows"
    x = rows(rng, 3, 48)
    y = linear(x, weight, Layer(0), out_dtype=jnp.float32, policy=Policy())
    assert oracle.error(y, np.asarray(x, np.float64) @ oracle.matrix(tensor).T) < SUM_BOUND


def test_decoding_is_exact_for_every_code_and_scale():
    """One hot rows read single weights: 16 codes times all finite non-negative scales, powers of two as global scale."""
    bits = np.arange(0x7F, dtype=np.uint8)
    codes = np.tile(np.arange(16, dtype=np.uint8), (len(bits), 2))
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    tensor = NVFP4Tensor(packed, np.stack([bits, bits[::-1]], axis=1), np.float32(0.25))
    weight = build_linear([[tensor]], route=LinearRoute(), dtype=DTYPE)
    x = jnp.eye(32, dtype=DTYPE)
    found = linear(x, weight, Layer(0), out_dtype=jnp.float32, policy=Policy())
    assert np.array_equal(np.asarray(found, np.float64), oracle.matrix(tensor).T)
