"""Both GPU bodies on whatever GPU is present: its own, and the sm_70 one as PTX that the driver translates.

Oracle: float64 numpy (linear_oracle.py), and for bits the same row alone. On GPUs without m8n8k4 hardware the sm_70 body is
emulated: its values and indexing are proved here, its speed and the last bits of Volta's tensor cores are not.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import linear_oracle as oracle
import numpy as np
import pytest
from jax import lax

from onecat_jax import _ext
from onecat_jax.custom_calls.dispatch import Policy, Target
from onecat_jax.custom_calls.linear import DenseTensor, Layer, LinearRoute, build_linear, linear
from onecat_jax.custom_calls.linear.specs import ROWS, SPECS, LinearSpec

pytestmark = pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")

FORMATS = ["fp8 row", "fp8 block", "int4 32", "int4 64", "int4 96", "int4 128 ordered", "int4 row"]
SMALL = [s for s in SPECS if s.n * s.k <= 8704 * 5120]
# On GPUs of 132 multiprocessors the first goes to another body, and the second has its K cut up among a cluster's blocks.
BODIES = [LinearSpec("many tiles", 25600, 1152), LinearSpec("long k", 200, 17408)]


@pytest.fixture(params=["own", "own as ptx", "sm_70"])
def policy(request):
    """The policy under test; the image that must serve it is checked afterwards."""
    own = Target.detect()
    target = Target("gpu", 70) if request.param == "sm_70" else own
    family = "m8n8k4" if target.capability < 80 else "m16n8k16"
    kind = request.node.callspec.params.get("kind", "nvfp4").split()[0]
    _ext.force_ptx(request.param == "own as ptx")
    jax.clear_caches()
    yield Policy(strict=True, target=target)
    loaded = _ext.loaded_architecture(f"{kind}_{family}")
    _ext.force_ptx(False)
    jax.clear_caches()
    translated = request.param == "own as ptx" or target != own
    assert loaded.startswith("compute_" if translated else "sm_"), loaded


def build(spec_n: int, spec_k: int, policy: Policy, layers: int = 2, kind: str = "nvfp4"):
    rng = np.random.default_rng(spec_n * spec_k)
    stack = [[oracle.MAKERS[kind](rng, spec_n, spec_k)] for _ in range(layers)]
    return stack, build_linear(stack, route=LinearRoute(policy), dtype=jnp.float16)


def some_rows(m: int, k: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(m).standard_normal((m, k)), jnp.float16)


@pytest.mark.parametrize("spec", [*SMALL, *BODIES], ids=lambda spec: spec.name)
def test_values_over_the_table_and_the_expansion(policy, spec):
    stack, weight = build(spec.n, spec.k, policy)
    sample = np.sort(np.random.default_rng(1).choice(spec.n, min(spec.n, 512), replace=False))
    expected = oracle.matrix(oracle.take(stack[1][0], sample)).T
    for m in ROWS:
        x = some_rows(m, spec.k)
        for out, bound in ((jnp.float32, 3e-6 if m <= 64 else 5e-4), (jnp.float16, 6e-4)):
            y = np.asarray(linear(x, weight, Layer(1), out_dtype=out, policy=policy))[:, sample]
            assert oracle.error(y, np.asarray(x, np.float64) @ expected) < bound, m


@pytest.mark.parametrize("kind", FORMATS)
def test_values_of_fp8_and_int4_and_their_expansion(policy, kind):
    for n, k in ((100, 384), (1, 1152), (8704, 5120), (8300, 1152), (200, 17280)):
        if kind == "int4 96" and k == 5120:
            continue
        stack, weight = build(n, k, policy, kind=kind)
        sample = np.sort(np.random.default_rng(1).choice(n, min(n, 512), replace=False))
        expected = oracle.matrix(oracle.take(stack[1][0], sample))
        for m in ROWS:
            x = some_rows(m, k)
            for out, bound in ((jnp.float32, 3e-6 if m <= 64 else 5e-4), (jnp.float16, 6e-4)):
                y = np.asarray(linear(x, weight, Layer(1), out_dtype=out, policy=policy))[:, sample]
                assert oracle.product_error(y, x, expected) < bound, (n, k, m)


@pytest.mark.parametrize("k", [5760, 8448, 17280])
@pytest.mark.parametrize("kind", ["nvfp4", *FORMATS])
def test_three_rows_inside_forty_keep_their_bits(policy, kind, k):
    _, weight = build(100, k, policy, kind=kind)
    x = some_rows(40, k)
    whole = np.asarray(linear(x, weight, Layer(0), out_dtype=jnp.float32, policy=policy))
    for at in (0, 5, 17, 37):
        alone = linear(x[at : at + 3], weight, Layer(0), out_dtype=jnp.float32, policy=policy)
        assert np.array_equal(np.asarray(alone), whole[at : at + 3])


@pytest.mark.parametrize(("n", "k"), [(5120, 1536), (1600, 17408)])
@pytest.mark.parametrize("kind", ["nvfp4", "fp8 row", "fp8 block", "int4 128"])
def test_a_hundred_runs_give_the_same_bits(policy, kind, n, k):
    _, weight = build(n, k, policy, kind=kind)
    x = some_rows(7, k)
    call = jax.jit(lambda x, w: linear(x, w, Layer(1), out_dtype=jnp.float32, policy=policy))
    first = np.asarray(call(x, weight))
    assert all(np.array_equal(np.asarray(call(x, weight)), first) for _ in range(100))


@pytest.mark.parametrize("kind", ["nvfp4", "fp8 row", "fp8 block", "int4 96"])
def test_a_recorded_loop_over_layers_follows_changing_inputs(policy, kind):
    _, weight = build(288, 288, policy, layers=6, kind=kind)

    @jax.jit
    def loop(x, weight):
        def body(i, out):
            y = linear(x, weight, Layer(i, 2, 1), out_dtype=jnp.float32, policy=policy)
            return lax.dynamic_update_index_in_dim(out, y, i, 0)

        return lax.fori_loop(0, 3, body, jnp.zeros((3, 5, 288), jnp.float32))

    for seed in range(16):
        x = jnp.asarray(np.random.default_rng(seed).standard_normal((5, 288)), jnp.float16)
        found = np.asarray(loop(x, weight))
        for i in range(3):
            alone = linear(x, weight, Layer(2 * i + 1), out_dtype=jnp.float32, policy=policy)
            assert np.array_equal(found[i], np.asarray(alone))


@pytest.mark.parametrize("kind", ["nvfp4", "fp8 row", "fp8 block", "int4 32"])
def test_a_layer_outside_the_stack_gives_nan_and_no_fault(policy, kind):
    _, weight = build(64, 96, policy, kind=kind)
    for m in (3, 70):
        y = linear(some_rows(m, 96), weight, Layer(2), out_dtype=jnp.float32, policy=policy)
        assert np.isnan(np.asarray(y)).all()


@pytest.mark.parametrize(
    ("kind", "field", "change", "text"),
    [
        (
            "fp8 row",
            "scales",
            lambda a: a[:, :-1],
            r"scales are \[2, 63\], must be \[2, 64\] or \[2, \d, 1, \d\d\]",
        ),
        (
            "fp8 block",
            "codes",
            lambda a: a[:, :, :1],
            r"codes are \[2, \d, 1, 2, 32, 16\], a weight \[64, 96\]",
        ),
        (
            "int4 32",
            "zeros",
            lambda a: a[:, :, :2],
            r"zero points \[2, \d, 2, \d\d\], must be \[2, \d, 4, \d\d\]",
        ),
        (
            "int4 32",
            "group",
            lambda _: 64,
            r"groups of 64 k, must be a multiple of 32 that divides K, which is 96",
        ),
    ],
)
def test_fp8_and_int4_operands_of_another_shape_are_refused(policy, kind, field, change, text):
    _, weight = build(64, 96, policy, kind=kind)
    wrong = replace(weight, **{field: change(getattr(weight, field))})
    for m in (3, 70):
        with pytest.raises(jax.errors.JaxRuntimeError, match=text):
            linear(some_rows(m, 96), wrong, Layer(0), policy=policy).block_until_ready()
    y = linear(some_rows(3, 96), weight, Layer(0), policy=policy)
    assert np.isfinite(np.asarray(y)).all()


def test_operands_of_another_shape_are_refused_with_numbers(policy):
    _, weight = build(64, 96, policy)
    wrong = type(weight)(
        weight.codes[:, :1], weight.scales, weight.global_scale, 64, 96, weight.layout
    )
    text = r"codes are \[2, 1, 2, \d, 32, 16\], a weight \[64, 96\] needs \[L, \d, 2, \d, 32, 16\]"
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        linear(some_rows(3, 96), wrong, Layer(0), policy=policy).block_until_ready()
    y = linear(some_rows(3, 96), weight, Layer(0), policy=policy)
    assert np.isfinite(np.asarray(y)).all()


def test_values_of_float16_weights_in_a_stack():
    """Only the family of the GPU at hand has a body for them."""
    policy = Policy(strict=True)
    for n, k in ((100, 288), (1, 1152), (5120, 1536), (8300, 5120), (40, 17408)):
        rng = np.random.default_rng(n)
        layers = [[DenseTensor(rng.standard_normal((n, k)).astype(np.float16))] for _ in range(2)]
        weight = build_linear(layers, route=LinearRoute(policy), dtype=jnp.float16)
        expected = layers[1][0].weight.astype(np.float64)
        for m in ROWS:
            x = some_rows(m, k)
            y = np.asarray(linear(x, weight, Layer(1), out_dtype=jnp.float32, policy=policy))
            assert oracle.product_error(y, x, expected) < (3e-6 if m <= 16 else 5e-4), (n, k, m)
            row = np.asarray(linear(x[:1], weight, Layer(1), out_dtype=jnp.float32, policy=policy))
            assert m > 16 or np.array_equal(row[0], y[0])
