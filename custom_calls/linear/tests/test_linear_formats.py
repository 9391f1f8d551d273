"""Values of the linear with FP8 and INT4 weights, on whatever device is the default one.

Oracle: float64 numpy over weights decoded independently (linear_oracle.py). Bounds are of single outputs, relative to
the norms of the rows that they are products of. Not covered here: which bits come out (test_linear_bits.py).
"""

import jax
import jax.numpy as jnp
import linear_oracle as oracle
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import (
    FP8Tensor,
    INT4Tensor,
    Layer,
    LinearRoute,
    build_linear,
    exact_matrix,
    linear,
)

ON_GPU = jax.default_backend() == "gpu"
DTYPE = jnp.float16 if ON_GPU else jnp.float32  # what the handlers take
SUM_BOUND = 1e-6
HALF_BOUND = 5e-4
PLAIN = Policy("plain")
KINDS = [kind for kind in oracle.MAKERS if kind.startswith(("fp8", "int4"))]
SHAPES = ((100, 384), (33, 1152), (7, 288), (300, 32))


def fits(kind: str, k: int) -> bool:
    words = kind.split()
    return words[0] == "fp8" or words[1] == "row" or k % int(words[1]) == 0


CASES = [(kind, n, k) for kind in KINDS for n, k in SHAPES if fits(kind, k)]


def rows(rng: np.random.Generator, m: int, k: int) -> jax.Array:
    return jnp.asarray(rng.standard_normal((m, k)), DTYPE)


def built(*layers: list, policy: Policy = Policy()):
    return build_linear(layers, route=LinearRoute(policy), dtype=DTYPE)


def product(x, weight, at: int = 0, policy: Policy = Policy()) -> np.ndarray:
    return np.asarray(linear(x, weight, Layer(at), out_dtype=jnp.float32, policy=policy))


def bound(m: int) -> float:
    return HALF_BOUND if ON_GPU and m > 64 else SUM_BOUND


@pytest.mark.parametrize(("kind", "n", "k"), CASES, ids=lambda v: str(v))
def test_products_agree_with_float64(kind, n, k):
    rng = np.random.default_rng(n * k)
    tensors = [oracle.MAKERS[kind](rng, n, k) for _ in range(2)]
    weight = built(*[[t] for t in tensors])
    assert weight.layout != "rows"
    expected = oracle.matrix(tensors[1])
    for m in (1, 8, 65) if (n, k) != SHAPES[0] else (1, 2, 3, 6, 8, 9, 16, 17, 33, 64, 65, 200):
        x = rows(rng, m, k)
        assert oracle.product_error(product(x, weight, 1), x, expected) < bound(m), m


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    n=st.integers(1, 150),
    units=st.integers(1, 30),
    m=st.integers(1, 70),
    seed=st.integers(0, 2**32 - 1),
)
def test_products_agree_with_float64_for_any_shape(kind, n, units, m, seed):
    rng = np.random.default_rng(seed)
    k = 32 * units
    if not fits(kind, k):
        k *= int(kind.split()[1]) // 32
    tensor = oracle.MAKERS[kind](rng, n, k)
    x = rows(rng, m, k)
    found = product(x, built([tensor]))
    assert oracle.product_error(found, x, oracle.matrix(tensor)) < 2 * bound(m)


@pytest.mark.parametrize("kind", KINDS)
def test_the_plain_route_agrees_with_the_handlers(kind):
    rng = np.random.default_rng(7)
    layers = [[oracle.MAKERS[kind](rng, 130, 384)] for _ in range(2)]
    x = rows(rng, 19, 384)
    auto, plain = (product(x, built(*layers, policy=p), 1, p) for p in (Policy(), PLAIN))
    assert oracle.error(auto, np.asarray(plain, np.float64)) < SUM_BOUND


@pytest.mark.parametrize("kind", ["nvfp4", "dense", *KINDS])
def test_the_exact_matrix_is_what_the_format_says(kind):
    tensor = oracle.MAKERS[kind](np.random.default_rng(8), 130, 384)
    assert np.array_equal(exact_matrix(tensor), oracle.matrix(tensor))


# ---- decoding, by rows that read single weights


def single_weights(tensor, policy: Policy = Policy()) -> np.ndarray:
    """What the route takes the matrix to be, in the order of the input's features."""
    k = oracle.matrix(tensor).shape[1]
    parts = [slice(at, at + 64) for at in range(0, k, 64)]  # a GPU would expand for more rows
    weight, x = built([tensor], policy=policy), jnp.eye(k, dtype=DTYPE)
    return np.concatenate([product(x[p], weight, policy=policy) for p in parts]).T


@pytest.mark.parametrize("policy", [Policy(), PLAIN], ids=["handler", "plain"])
def test_every_e4m3_code_is_decoded_exactly(policy):
    codes = np.concatenate([np.arange(0x7F), np.arange(0x80, 0xFF), [0, 1]]).astype(np.uint8)
    both = np.stack([codes, codes[::-1]])
    for scales in (np.float32(0.25), np.float32([0.25, 2.0**-14]), np.float32([[0.5, 2.0]])):
        tensor = FP8Tensor(both, np.asarray(scales))
        found = single_weights(tensor, policy)
        assert np.array_equal(np.asarray(found, np.float64), oracle.matrix(tensor))


@pytest.mark.parametrize("policy", [Policy(), PLAIN], ids=["handler", "plain"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_every_int4_code_and_zero_point_is_decoded_exactly(dtype, policy):
    """Of a product with a float32 scale nothing but its rounding to float32 is lost."""
    rng = np.random.default_rng(9)
    codes = np.tile(np.arange(16, dtype=np.uint8), (16, 4))
    zeros = np.stack([np.arange(16), np.arange(16)[::-1]], axis=1).astype(np.uint8)
    scales = rng.uniform(-1, 1, zeros.shape).astype(dtype)
    tensor = INT4Tensor(codes[:, 0::2] | codes[:, 1::2] << 4, scales, zeros, 32)
    found = single_weights(tensor, policy)
    assert np.array_equal(found, oracle.matrix(tensor).astype(np.float32))


def test_float16_scales_below_the_smallest_normal_number_count():
    """XLA runs with subnormals flushed to zero; the handlers must not."""
    scales = np.full((8, 1), 2.0**-24, np.float16)
    codes, zeros = np.full((8, 16), 0x99, np.uint8), np.full((8, 1), 8, np.uint8)
    weight = built([INT4Tensor(codes, scales, zeros, 32)])
    assert (product(jnp.ones((1, 32), DTYPE), weight) == 2.0**-19).all()


# ---- fusing and stacking


def test_fp8_siblings_with_scales_of_tensors_and_rows_give_the_bits_they_have_alone():
    rng = np.random.default_rng(10)
    siblings = [
        oracle.MAKERS[f"fp8 {scales}"](rng, n, 160)
        for n, scales in ((24, "tensor"), (40, "row"), (9, "tensor"))
    ]
    x = rows(rng, 5, 160)
    fused = built(siblings)
    assert not fused.blocked
    alone = [product(x, built([s])) for s in siblings]
    assert np.array_equal(product(x, fused), np.concatenate(alone, axis=1))


def test_fp8_scales_of_blocks_among_siblings_and_layers_make_all_be_of_blocks():
    rng = np.random.default_rng(11)
    kinds = [("row", "block"), ("tensor", "tensor"), ("row and block", "row")]
    layers = [
        [oracle.MAKERS[f"fp8 {s}"](rng, n, 288) for s, n in zip(k, (40, 140), strict=True)]
        for k in kinds
    ]
    weight = built(*layers)
    assert weight.blocked
    x = rows(rng, 9, 288)
    for at, layer in enumerate(layers):
        expected = np.concatenate([oracle.matrix(t) for t in layer])
        assert oracle.product_error(product(x, weight, at), x, expected) < SUM_BOUND


def test_a_part_of_a_block_scaled_matrix_needs_no_alignment_of_rows():
    rng = np.random.default_rng(12)
    whole = oracle.random_fp8(rng, 300, 288, "block")
    part = FP8Tensor(whole.codes[100:270], whole.row_scales()[100:270])
    x = rows(rng, 4, 288)
    assert np.array_equal(product(x, built([part])), product(x, built([whole]))[:, 100:270])


def test_int4_siblings_of_other_groups_and_scale_dtypes_give_the_bits_they_have_alone():
    """On a GPU sums are scaled group by group, so that smaller groups round differently there."""
    rng = np.random.default_rng(13)
    siblings = [
        oracle.random_int4(rng, 24, 384, 128, np.float16),
        oracle.random_int4(rng, 40, 384, 96, ml_dtypes.bfloat16),
        oracle.random_int4(rng, 9, 384, 384, np.float16),
    ]
    x = rows(rng, 5, 384)
    fused = built(siblings)
    assert (fused.group, fused.scales.dtype) == (32, np.float32)
    found = product(x, fused)
    alone = np.concatenate([product(x, built([s])) for s in siblings], axis=1)
    if ON_GPU:
        assert oracle.error(found, alone.astype(np.float64)) < SUM_BOUND
    else:
        assert np.array_equal(found, alone)


def test_int4_scales_of_16_bits_stay_so():
    rng = np.random.default_rng(14)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        for policy in (Policy(), PLAIN):
            weight = built([oracle.random_int4(rng, 40, 128, 64, dtype)], policy=policy)
            assert weight.scales.dtype == dtype


@pytest.mark.parametrize("policy", [Policy(), PLAIN], ids=["handler", "plain"])
def test_columns_in_another_order_multiply_the_features_they_name(policy):
    """Of two layers one is ordered: the other keeps the order that it has."""
    rng = np.random.default_rng(15)
    layers = [[oracle.random_int4(rng, 40, 256, 64, ordered=ordered)] for ordered in (True, False)]
    weight = built(*layers, policy=policy)
    x = rows(rng, 6, 256)
    for at, (tensor,) in enumerate(layers):
        found = product(x, weight, at, policy)
        assert oracle.product_error(found, x, oracle.matrix(tensor)) < SUM_BOUND


def test_siblings_of_one_order_can_be_fused():
    rng = np.random.default_rng(16)
    first, second = (oracle.random_int4(rng, n, 128, 64, ordered=True) for n in (16, 24))
    second = INT4Tensor(second.codes, second.scales, second.zeros, 64, first.order.copy())
    x = rows(rng, 3, 128)
    expected = np.concatenate([oracle.matrix(first), oracle.matrix(second)])
    found = product(x, built([first, second]))
    assert oracle.product_error(found, x, expected) < SUM_BOUND


# ---- edges


@pytest.mark.parametrize(("n", "k"), [(10, 48), (5, 17), (130, 200)])
@pytest.mark.parametrize("scales", ["tensor", "row", "block"])
def test_fp8_of_a_k_that_no_packed_layout_takes_runs_in_plain_jax(scales, n, k):
    rng = np.random.default_rng(17)
    tensor = oracle.random_fp8(rng, n, k, scales)
    weight = built([tensor])
    assert weight.layout == "rows"
    x = rows(rng, 3, k)
    assert oracle.product_error(product(x, weight), x, oracle.matrix(tensor)) < SUM_BOUND


@pytest.mark.parametrize("kind", ["fp8 row", "fp8 block", "int4 32"])
def test_rows_of_zeros_give_positive_zeros_and_leave_neighbours_alone(kind):
    rng = np.random.default_rng(18)
    weight, x = built([oracle.MAKERS[kind](rng, 64, 96)]), rows(rng, 20, 96)
    empty = [0, 7, 13]
    found = product(x.at[jnp.array(empty)].set(0), weight)
    kept = np.setdiff1d(np.arange(20), empty)
    assert np.array_equal(found[kept], product(x, weight)[kept])
    assert (found[empty] == 0).all()


@pytest.mark.parametrize("kind", ["fp8 row", "fp8 block", "int4 128"])
def test_the_product_over_parts_of_k_is_the_sum_of_theirs(kind):
    """What tensor parallelism does with K: parts of 128 k, each a weight of its own."""
    rng = np.random.default_rng(19)
    tensor = oracle.MAKERS[kind](rng, 40, 512)
    x = rows(rng, 5, 512)
    total = np.zeros((5, 40))
    for first in range(0, 512, 128):
        k, blocks = slice(first, first + 128), slice(first // 128, first // 128 + 1)
        if isinstance(tensor, FP8Tensor):
            scales = tensor.scales[:, blocks] if tensor.scales.ndim == 2 else tensor.scales
            part = FP8Tensor(tensor.codes[:, k], scales)
        else:
            codes = tensor.codes[:, first // 2 : first // 2 + 64]
            part = INT4Tensor(codes, tensor.scales[:, blocks], tensor.zeros[:, blocks], 128)
        total += product(x[:, k], built([part]))
    assert oracle.product_error(total, x, oracle.matrix(tensor)) < SUM_BOUND
