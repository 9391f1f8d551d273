"""What the linear refuses of FP8 and INT4 weights, and the sentence it refuses with. No oracle: the messages are the law."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import linear_oracle as oracle
import numpy as np
import pytest

from onecat_jax.custom_calls.dispatch import Policy, Target
from onecat_jax.custom_calls.linear import (
    FP8Tensor,
    INT4Tensor,
    Layer,
    LinearDescriptor,
    LinearRoute,
    build_linear,
    linear,
    plan,
)

RNG = np.random.default_rng(0)
cpu_only = pytest.mark.skipif(jax.default_backend() != "cpu", reason="about the CPU handlers")


def built(*layers: list, policy: Policy = Policy()):
    return build_linear(layers, route=LinearRoute(policy), dtype=jnp.float32)


def fp8(codes: int = 0, scales=1.0, n: int = 4, k: int = 64) -> FP8Tensor:
    found = np.float32(scales) if isinstance(scales, float) else scales
    return FP8Tensor(np.full((n, k), codes, np.uint8), np.asarray(found))


def int4(n: int = 4, k: int = 64, **fields) -> INT4Tensor:
    return replace(oracle.random_int4(RNG, n, k, 32), **fields)


def ones(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (
            FP8Tensor(np.zeros((4, 64), np.int8), np.float32(1)),
            r"needs uint8 codes \[N, K\] and float32 scales, found int8 \[4, 64\] and float32",
        ),
        (fp8(scales=ones(4, dtype=np.float16)), r"found uint8 \[4, 64\] and float16"),
        (
            fp8(scales=ones(3), k=200),
            r"codes \[4, 200\] need scales of one of the shapes \[\], \[4\], \[1, 2\], \[4, 2\], found \[3\]",
        ),
        (fp8(scales=ones(1, 1), k=200), r"\[4, 2\], found \[1, 1\]"),
        (fp8(codes=0x7F), "256 of 256 FP8 codes are NaN"),
        (fp8(codes=0xFF, n=1), "64 of 64 FP8 codes are NaN"),
        (fp8(scales=0.0), "1 of 1 FP8 scales aren't positive and finite"),
        (
            fp8(scales=np.float32([1, -1, np.inf, np.nan])),
            "3 of 4 FP8 scales aren't positive and finite",
        ),
        (
            int4(codes=np.zeros((4, 32), np.int8)),
            r"needs uint8 codes \[N, K / 2\] and zero points, found int8 \[4, 32\] and uint8",
        ),
        (int4(zeros=np.zeros((4, 2), np.int8)), r"found uint8 \[4, 32\] and int8"),
        (int4(scales=ones(4, 2, dtype=np.float64)), "float16, bfloat16 or float32, found float64"),
        (int4(group=16), "multiple of 32 k and divide K, found groups of 16 and K = 64"),
        (int4(group=96), "found groups of 96 and K = 64"),
        (int4(group=0), "found groups of 0 and K = 64"),
        (
            int4(scales=ones(4, 3, dtype=np.float16)),
            r"codes \[4, 32\] in groups of 32 need scales and zero points \[4, 2\], found \[4, 3\] and \[4, 2\]",
        ),
        (int4(zeros=np.zeros((3, 2), np.uint8)), r"found \[4, 2\] and \[3, 2\]"),
        (int4(scales=np.full((4, 2), np.inf, np.float16)), "8 of 8 INT4 scales aren't finite"),
        (
            int4(zeros=np.uint8([[16, 0], [0, 0], [0, 255], [0, 0]])),
            "2 of 8 INT4 zero points exceed 15 .*255",
        ),
        (
            int4(order=np.arange(64)),
            r"order of 64 columns must be int32 \[64\], found int64 \[64\]",
        ),
        (int4(order=np.arange(32, dtype=np.int32)), r"found int32 \[32\]"),
        (
            int4(order=np.zeros(64, np.int32)),
            r"name each of 0 \.\. 63 once, it names 1 numbers from 0 to 0",
        ),
        (int4(order=np.arange(1, 65, dtype=np.int32)), "it names 64 numbers from 1 to 64"),
    ],
)
def test_tensors_that_a_format_cant_have_are_refused_with_counts(tensor, text):
    with pytest.raises(ValueError, match=text):
        built([tensor])


def test_negative_int4_scales_are_accepted():
    assert built([int4(scales=-ones(4, 2, dtype=np.float16))]).n == 4


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ([[fp8(), int4()]], "one kind, found FP8Tensor and INT4Tensor"),
        ([[fp8()], [oracle.random_nvfp4(RNG, 4, 64)]], "one kind, found FP8Tensor and NVFP4Tensor"),
        (
            [[int4()], [oracle.random_dense(RNG, 4, 64)]],
            "one kind, found DenseTensor and INT4Tensor",
        ),
        ([[fp8(), fp8(k=96)]], r"same K, found \[64, 96\]"),
        ([[int4()], [int4(n=5)]], r"same shape, found \[\(4, 64\), \(5, 64\)\]"),
        (
            [[int4(), int4(order=np.arange(64, dtype=np.int32)[::-1].copy())]],
            "2 fused INT4 siblings need one order of columns",
        ),
    ],
)
def test_tensors_that_make_no_stack_are_refused(layers, text):
    with pytest.raises(ValueError, match=text):
        built(*layers)


FP8_ROW, FP8_BLOCK, INT4 = "fp8 row", "fp8 block", "int4 32"


@cpu_only
@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        (
            FP8_ROW,
            {"codes": lambda a: a[..., :16]},
            r"codes are .*8, 16\], must be \[L, N / 8, K / 32, 8, 32\]",
        ),
        (
            FP8_ROW,
            {"codes": lambda a: a[:, :-1]},
            r"scales are \[2, 64\], must be \[2, 56\] or \[2, 7, 1, 8\]",
        ),
        (FP8_ROW, {"scales": lambda a: a[:1]}, r"scales are \[1, 64\], must be \[2, 64\]"),
        (FP8_BLOCK, {"scales": lambda a: a[:, :, :, :4]}, r"scales are \[2, 8, 1, 4\]"),
        (FP8_ROW, {"n": lambda _: 24}, "y has 24 features, the packed weight holds 64"),
        (FP8_ROW, {"codes": lambda a: a[:, :, :1]}, r"x is \[3, 64\], must be \[M, 32\]"),
        (
            INT4,
            {"codes": lambda a: a[..., :8]},
            r"codes are .*8, 8\], must be \[L, N / 8, K / 32, 8, 16\]",
        ),
        (
            INT4,
            {"scales": lambda a: a[:, :, :1]},
            r"scales are \[2, 8, 1, 8\] and zero points \[2, 8, 2, 8\]",
        ),
        (INT4, {"zeros": lambda a: a[:1]}, r"zero points \[1, 8, 2, 8\], must be \[2, 8, 2, 8\]"),
        (INT4, {"scales": lambda a: a.astype(jnp.int32)}, "scales have element type"),
        (
            INT4,
            {"group": lambda _: 48},
            "groups of 48 k, must be a multiple of 32 that divides K, which is 64",
        ),
        (INT4, {"n": lambda _: 65}, "y has 65 features, the packed weight holds 64"),
    ],
)
def test_corrupted_operands_are_refused_with_both_sides_of_the_mismatch(kind, fields, text):
    weight = built(*[[oracle.MAKERS[kind](RNG, 40, 64)] for _ in range(2)])
    wrong = replace(weight, **{f: change(getattr(weight, f)) for f, change in fields.items()})
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        linear(jnp.ones((3, 64), jnp.float32), wrong, Layer(0)).block_until_ready()


@cpu_only
@pytest.mark.parametrize("kind", [FP8_ROW, INT4])
def test_a_layer_outside_the_stack_is_refused(kind):
    weight = built([oracle.MAKERS[kind](RNG, 40, 64)])
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"is outside 0 \.\. 0"):
        linear(jnp.ones((3, 64), jnp.float32), weight, Layer(1)).block_until_ready()


@cpu_only
@pytest.mark.parametrize("kind", [FP8_ROW, INT4])
def test_a_weight_packed_for_another_route_is_refused_with_the_reason(kind):
    weight = built([oracle.MAKERS[kind](RNG, 40, 64)])
    with pytest.raises(ValueError, match=r"packed as .*, this call needs 'rows'.*set to plain"):
        linear(jnp.ones((3, 64)), weight, policy=Policy("plain"))


@pytest.mark.parametrize("kind", ["fp8", "int4"])
@pytest.mark.parametrize(
    ("target", "dtype", "k", "route", "reason"),
    [
        (Target("gpu", 70), jnp.float16, 5120, "sm_70 handler", "8.0 or later"),
        (Target("gpu", 90), jnp.float16, 288, "sm_80 handler", ""),
        (Target("gpu", 60), jnp.float16, 288, "plain", "it needs compute capability 7.0 to 7.9"),
        (Target("gpu", 70), jnp.bfloat16, 288, "plain", "must be float16, they are bfloat16"),
        (Target("gpu", 90), jnp.float16, 48, "plain", "K must be a multiple of 32, it is 48"),
        (Target("cpu"), jnp.bfloat16, 288, "cpu handler", "the target is cpu"),
        (Target("cpu"), jnp.float32, 200, "plain", "K must be a multiple of 32, it is 200"),
        (Target("tpu"), jnp.bfloat16, 288, "plain", "it runs on CPU, the target is tpu"),
    ],
)
def test_routes_follow_the_target_as_those_of_nvfp4_do(kind, target, dtype, k, route, reason):
    found = plan(LinearDescriptor(kind, 64, k, dtype), Policy(target=target))
    assert found.name == route
    assert reason in found.explain()
