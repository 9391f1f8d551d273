"""What the linear refuses, and the sentence it refuses with. No oracle: the messages are the law."""

import jax
import jax.numpy as jnp
import linear_oracle as oracle
import numpy as np
import pytest

from onecat_jax.custom_calls.dispatch import Policy, Target, reset_routes, routes
from onecat_jax.custom_calls.linear import (
    NVFP4,
    DenseTensor,
    Layer,
    LinearDescriptor,
    LinearRoute,
    NVFP4Tensor,
    build_linear,
    linear,
    plan,
)
from onecat_jax.errors import EngineError

RNG = np.random.default_rng(0)
cpu_only = pytest.mark.skipif(jax.default_backend() != "cpu", reason="about the CPU handlers")


def weight(n: int = 40, k: int = 64, layers: int = 2) -> NVFP4:
    stack = [[oracle.random_nvfp4(RNG, n, k)] for _ in range(layers)]
    return build_linear(stack, route=LinearRoute(), dtype=jnp.float32)


def replaced(w: NVFP4, **fields) -> NVFP4:
    return NVFP4(**{f: fields.get(f, getattr(w, f)) for f in w.__dataclass_fields__})


@cpu_only
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda w: replaced(w, codes=w.codes[:, :-1]),
            r"scales are \[2, 8, 2, 8, 2\], must be \[2, 7, 2, 8, 2\]",
        ),
        (
            lambda w: replaced(w, codes=w.codes[..., :8]),
            r"codes are .*8, 8\], must be \[L, N / 8, K / 32, 8, 16\]",
        ),
        (
            lambda w: replaced(w, scales=w.scales[:1]),
            r"scales are \[1, 8, 2, 8, 2\], must be \[2, 8, 2, 8, 2\]",
        ),
        (
            lambda w: replaced(w, global_scale=w.global_scale[:, :40]),
            r"global scales are \[2, 40\], must be \[2, 64\]",
        ),
        (lambda w: replaced(w, n=24), r"y has 24 features, the packed weight holds 64"),
        (lambda w: replaced(w, n=65), r"y has 65 features, the packed weight holds 64"),
        (
            lambda w: replaced(w, codes=w.codes[:, :, :1], scales=w.scales[:, :, :1]),
            r"x is \[3, 64\], must be \[M, 32\]",
        ),
        (lambda w: replaced(w, codes=w.codes.astype(jnp.int8)), r"[Ww]rong buffer dtype"),
    ],
    ids=[
        "fewer tiles",
        "narrow units",
        "fewer layers",
        "short globals",
        "n small",
        "n large",
        "short k",
        "dtype",
    ],
)
def test_corrupted_operands_are_refused_with_both_sides_of_the_mismatch(change, text):
    x = jnp.ones((3, 64), jnp.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        linear(x, change(weight()), Layer(0), policy=Policy()).block_until_ready()


@cpu_only
@pytest.mark.parametrize("layer", [Layer(2), Layer(-1), Layer(1, 2, 1)])
def test_a_layer_outside_the_stack_is_refused(layer):
    x = jnp.ones((3, 64), jnp.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"INVALID_ARGUMENT.* is outside 0 \.\. 1"):
        linear(x, weight(), layer, policy=Policy()).block_until_ready()


def test_rows_of_another_width_are_refused_while_tracing():
    with pytest.raises(ValueError, match="x has 32 features per row, the weight takes 64"):
        linear(jnp.ones((3, 32)), weight(), Layer(0), policy=Policy())


@cpu_only
def test_a_weight_packed_for_another_route_is_refused_with_the_reason():
    with pytest.raises(
        ValueError, match=r"packed as .*, this call needs 'rows'.*backend was set to plain"
    ):
        linear(jnp.ones((3, 64)), weight(), Layer(0), policy=Policy("plain"))


def test_separate_arrays_need_a_static_layer():
    layers = [[oracle.random_dense(RNG, 8, 16)] for _ in range(2)]
    w = build_linear(layers, route=LinearRoute(separate=True), dtype=jnp.float32)
    with pytest.raises(TypeError, match="known while tracing"):
        jax.jit(lambda i: linear(jnp.ones((1, 16)), w, Layer(i), policy=Policy()))(0)


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ([], "one kind, found nothing"),
        (
            [[oracle.random_nvfp4(RNG, 8, 32), oracle.random_dense(RNG, 8, 32)]],
            "DenseTensor and NVFP4Tensor",
        ),
        (
            [[oracle.random_dense(RNG, 8, 32), oracle.random_dense(RNG, 8, 48)]],
            r"same K, found \[32, 48\]",
        ),
        (
            [[oracle.random_nvfp4(RNG, 8, 32)], [oracle.random_nvfp4(RNG, 9, 32)]],
            r"\(8, 32\), \(9, 32\)",
        ),
        (
            [[NVFP4Tensor(np.zeros((4, 12), np.uint8), np.zeros((4, 1), np.uint8), 1.0)]],
            "multiple of 16, found K = 24",
        ),
        (
            [[NVFP4Tensor(np.zeros((4, 16), np.uint8), np.zeros((4, 1), np.uint8), 1.0)]],
            r"need scales \[4, 2\], found \[4, 1\]",
        ),
        (
            [[NVFP4Tensor(np.zeros((4, 16), np.int8), np.zeros((4, 2), np.uint8), 1.0)]],
            "uint8, found int8",
        ),
        (
            [[NVFP4Tensor(np.zeros((4, 16), np.uint8), np.full((4, 2), 0x7F, np.uint8), 1.0)]],
            "8 block scales .* 0x7f",
        ),
        (
            [[NVFP4Tensor(np.zeros((4, 16), np.uint8), np.full((4, 2), 0x90, np.uint8), 1.0)]],
            "negative or NaN",
        ),
        (
            [[NVFP4Tensor(np.zeros((4, 16), np.uint8), np.zeros((4, 2), np.uint8), np.inf)]],
            "finite, found inf",
        ),
        (
            [[NVFP4Tensor(np.zeros((4, 16), np.uint8), np.zeros((4, 2), np.uint8), 0.0)]],
            "positive and finite, found 0",
        ),
    ],
)
def test_tensors_that_make_no_stack_are_refused(layers, text):
    with pytest.raises(ValueError, match=text):
        build_linear(layers, route=LinearRoute(), dtype=jnp.float32)


def test_a_dense_tensor_is_not_mistaken_for_a_packed_one():
    w = build_linear(
        [[DenseTensor(np.ones((2, 3), np.float32))]], route=LinearRoute(), dtype=jnp.float32
    )
    assert (w.layers, w.n, w.k) == (1, 2, 3)


@pytest.mark.parametrize(
    ("target", "dtype", "k", "route", "reason"),
    [
        (
            Target("gpu", 70),
            jnp.float16,
            5120,
            "sm_70 handler",
            "8.0 or later, the target is a GPU of compute capability 7.0",
        ),
        (Target("gpu", 75), jnp.float16, 5120, "sm_70 handler", "7.5"),
        (Target("gpu", 90), jnp.float16, 288, "sm_80 handler", ""),
        (Target("gpu", 120), jnp.float16, 288, "sm_80 handler", ""),
        (Target("gpu", 60), jnp.float16, 288, "plain", "it needs compute capability 7.0 to 7.9"),
        (
            Target("gpu", 70),
            jnp.float32,
            288,
            "plain",
            "activations must be float16, they are float32",
        ),
        (Target("gpu", 90), jnp.float16, 48, "plain", "K must be a multiple of 32, it is 48"),
        (Target("cpu"), jnp.bfloat16, 288, "cpu handler", "the target is cpu"),
        (Target("tpu"), jnp.bfloat16, 288, "plain", "it runs on CPU, the target is tpu"),
    ],
)
def test_the_route_follows_the_target_and_says_why_faster_ones_declined(
    target, dtype, k, route, reason
):
    found = plan(LinearDescriptor("nvfp4", 64, k, dtype), Policy(target=target))
    assert found.name == route
    assert reason in found.explain()


def test_dense_weights_use_the_library_on_gpus():
    found = plan(
        LinearDescriptor("dense", 64, 33, jnp.float16),
        Policy(strict=True, target=Target("gpu", 70)),
    )
    assert found.name == "library dot"


def test_strict_refuses_plain_jax_with_the_reason():
    descriptor = LinearDescriptor("nvfp4", 64, 48, jnp.float16)
    with pytest.raises(
        EngineError, match=r"no fast route for nvfp4 \[64, 48\] .*multiple of 32, it is 48"
    ):
        plan(descriptor, Policy(strict=True, target=Target("gpu", 70)))


def test_the_report_counts_what_was_traced():
    reset_routes()
    descriptor = LinearDescriptor("nvfp4", 64, 64, jnp.float32)
    for _ in range(3):
        plan(descriptor, Policy(target=Target("cpu")))
    (record,) = routes()
    assert (record.operator, record.route.name, record.traces) == ("linear", "cpu handler", 3)
    assert record.descriptor == "nvfp4 [64, 64] with float32 activations"


def test_an_unknown_backend_is_refused():
    with pytest.raises(EngineError, match="backend is 'cuda'; it must be 'auto' or 'plain'"):
        Policy("cuda")


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        (70, "library dot"),
        (80, "sm_80 handler, library dot for many rows"),
        (86, "library dot"),
        (90, "sm_80 handler, library dot for many rows"),
    ],
)
def test_float16_weights_take_the_handler_where_shared_memory_suffices(capability, expected):
    policy = Policy(target=Target("gpu", capability))
    found = plan(LinearDescriptor("dense", 5120, 6144, jnp.float16), policy)
    assert found.name == expected
    other = plan(LinearDescriptor("dense", 5120, 6144, jnp.float32), policy)
    assert other.name == "library dot"
