"""Both GPU bodies on whatever GPU is present: its own, and the sm_70 one as PTX that the driver translates.

Oracle: float64 numpy (linear_oracle.py), and for bits the same row alone. On GPUs without m8n8k4 hardware the sm_70 body is
emulated: its values and indexing are proved here, its speed and the last bits of Volta's tensor cores are not.
"""

import jax
import jax.numpy as jnp
import linear_oracle as oracle
import numpy as np
import pytest
from jax import lax

from onecat_jax import _ext
from onecat_jax.custom_calls.dispatch import Policy, Target
from onecat_jax.custom_calls.linear import Layer, LinearRoute, build_linear, linear
from onecat_jax.custom_calls.linear.specs import ROWS, SPECS

pytestmark = pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")

SMALL = [s for s in SPECS if s.n * s.k <= 8704 * 5120]


@pytest.fixture(params=["own", "own as ptx", "sm_70"])
def policy(request):
    """The policy under test; the image that must serve it is checked afterwards."""
    own = Target.detect()
    target = Target("gpu", 70) if request.param == "sm_70" else own
    module = "nvfp4_m8n8k4" if target.capability < 80 else "nvfp4_m16n8k16"
    _ext.force_ptx(request.param == "own as ptx")
    jax.clear_caches()
    yield Policy(strict=True, target=target)
    loaded = _ext.loaded_architecture(module)
    _ext.force_ptx(False)
    jax.clear_caches()
    translated = request.param == "own as ptx" or target != own
    assert loaded.startswith("compute_" if translated else "sm_"), loaded


def build(spec_n: int, spec_k: int, policy: Policy, layers: int = 2):
    rng = np.random.default_rng(spec_n * spec_k)
    stack = [[oracle.random_nvfp4(rng, spec_n, spec_k)] for _ in range(layers)]
    return stack, build_linear(stack, route=LinearRoute(policy), dtype=jnp.float16)


def some_rows(m: int, k: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(m).standard_normal((m, k)), jnp.float16)


def test_values_over_the_table_and_the_expansion(policy):
    for spec in SMALL:
        stack, weight = build(spec.n, spec.k, policy)
        sample = np.sort(np.random.default_rng(1).choice(spec.n, min(spec.n, 512), replace=False))
        expected = oracle.matrix(oracle.take(stack[1][0], sample)).T
        for m in ROWS:
            x = some_rows(m, spec.k)
            for out, bound in ((jnp.float32, 3e-6 if m <= 64 else 5e-4), (jnp.float16, 6e-4)):
                y = np.asarray(linear(x, weight, Layer(1), out_dtype=out, policy=policy))[:, sample]
                assert oracle.error(y, np.asarray(x, np.float64) @ expected) < bound, (spec, m)


def test_three_rows_inside_forty_keep_their_bits(policy):
    _, weight = build(100, 5120, policy)
    x = some_rows(40, 5120)
    whole = np.asarray(linear(x, weight, Layer(0), out_dtype=jnp.float32, policy=policy))
    for at in (0, 5, 17, 37):
        alone = linear(x[at : at + 3], weight, Layer(0), out_dtype=jnp.float32, policy=policy)
        assert np.array_equal(np.asarray(alone), whole[at : at + 3])


def test_a_hundred_runs_give_the_same_bits(policy):
    _, weight = build(5120, 1536, policy)
    x = some_rows(7, 1536)
    call = jax.jit(lambda x, w: linear(x, w, Layer(1), out_dtype=jnp.float32, policy=policy))
    first = np.asarray(call(x, weight))
    assert all(np.array_equal(np.asarray(call(x, weight)), first) for _ in range(100))


def test_a_recorded_loop_over_layers_follows_changing_inputs(policy):
    _, weight = build(288, 288, policy, layers=6)

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


def test_a_layer_outside_the_stack_gives_nan_and_no_fault(policy):
    _, weight = build(64, 96, policy)
    for m in (3, 70):
        y = linear(some_rows(m, 96), weight, Layer(2), out_dtype=jnp.float32, policy=policy)
        assert np.isnan(np.asarray(y)).all()


def test_operands_of_another_shape_are_refused_with_numbers(policy):
    _, weight = build(64, 96, policy)
    wrong = type(weight)(
        weight.codes[:, :1], weight.scales, weight.global_scale, 64, 96, weight.layout
    )
    text = r"codes are \[2, 1, 2, 2, 32, 16\], a weight \[64, 96\] needs \[L, 2, 2, 2, 32, 16\]"
    with pytest.raises(jax.errors.JaxRuntimeError, match=text):
        linear(some_rows(3, 96), wrong, Layer(0), policy=policy).block_until_ready()
    y = linear(some_rows(3, 96), weight, Layer(0), policy=policy)
    assert np.isfinite(np.asarray(y)).all()
