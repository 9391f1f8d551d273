"""The linear on a processor's matrix units, for NVFP4 and bfloat16 weights.

Oracle: the contract of cpu_amx.h, operation by operation, in numpy's long double, which holds every sum of one product and one
running sum without a rounding that matters; and the float64 product. That a row's bits depend on the row alone is in
test_linear_bits.py.
"""

from dataclasses import replace

import jax.numpy as jnp
import linear_oracle as oracle
import ml_dtypes
import numpy as np
import pytest

from onecat_jax import _ext
from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import DenseTensor, Layer, LinearRoute, build_linear, linear

pytestmark = pytest.mark.skipif(
    _ext.cpu_isa() != "amx", reason="this processor has no matrix units, or the system gives none"
)
UNIT = 32


def run(x, weight) -> np.ndarray:
    return np.asarray(linear(jnp.asarray(x), weight, Layer(0), policy=Policy()))


def parts(x: np.ndarray) -> list[np.ndarray]:
    """The three bfloat16 numbers that add up to x, as float32."""
    found = []
    for _ in range(3):
        part = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
        found.append(part)
        x = x - part
    assert not x.any()
    return found


def running_sum(part: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """[M, N] float32 of one part [M, K] and weights [N, K]."""
    total = np.zeros((len(part), len(weight)), np.float32)
    for first in range(0, part.shape[1], UNIT):
        chains = np.zeros((2, *total.shape), np.float32)
        for i in range(UNIT):
            a, w = (v[:, first + i].astype(np.longdouble) for v in (part, weight))
            chains[i % 2] = (np.outer(a, w) + chains[i % 2]).astype(np.float32)
        total += chains[0] + chains[1]
    return total


def contract(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    first, next_, last = (running_sum(part, weight) for part in parts(x))
    return (first + next_) + last


@pytest.mark.parametrize(("m", "n", "k"), [(1, 48, 96), (5, 33, 64), (20, 7, 2080)])
def test_bfloat16_weights_give_the_bits_of_the_contract(m, n, k):
    rng = np.random.default_rng(m)
    stored = rng.standard_normal((n, k)).astype(ml_dtypes.bfloat16)
    weight = build_linear([[DenseTensor(stored)]], route=LinearRoute(), dtype=jnp.float32)
    x = rng.standard_normal((m, k)).astype(np.float32)
    assert np.array_equal(run(x, weight), contract(x, stored.astype(np.float32)))


def test_nvfp4_gives_the_bits_of_the_contract_times_the_global_scale():
    rng = np.random.default_rng(2)
    tensor = oracle.random_nvfp4(rng, 40, 160, global_scale=1.0)
    weight = build_linear([[tensor]], route=LinearRoute(), dtype=jnp.float32)
    x = rng.standard_normal((3, 160)).astype(np.float32)
    exact = oracle.matrix(tensor)
    assert np.array_equal(exact, exact.astype(ml_dtypes.bfloat16).astype(np.float64))
    assert np.array_equal(run(x, weight), contract(x, exact.astype(np.float32)))
    scaled = replace(tensor, global_scale=np.float32(0.3))
    found = build_linear([[scaled]], route=LinearRoute(), dtype=jnp.float32)
    assert np.array_equal(run(x, found), run(x, weight) * np.float32(0.3))


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e30])
def test_products_are_as_exact_as_in_float32(scale):
    """Within two roundings of float32 of the norms, at magnitudes that bfloat16 alone would round to eight bits."""
    rng = np.random.default_rng(3)
    stored = rng.standard_normal((64, 1024)).astype(ml_dtypes.bfloat16)
    weight = build_linear([[DenseTensor(stored)]], route=LinearRoute(), dtype=jnp.float32)
    x = (rng.standard_normal((9, 1024)) * scale).astype(np.float32)
    assert oracle.product_error(run(x, weight), x, stored.astype(np.float64)) < 2**-23


def test_what_is_not_finite_stays_where_it_is():
    stored = np.ones((4, 64), ml_dtypes.bfloat16)
    weight = build_linear([[DenseTensor(stored)]], route=LinearRoute(), dtype=jnp.float32)
    x = np.ones((5, 64), np.float32)
    x[0, 3], x[2, 40], x[3, 1], x[4, 0] = np.inf, np.nan, -np.inf, np.finfo(np.float32).max
    found = run(x, weight)
    assert np.all(found[0] == np.inf)
    assert np.all(found[1] == 64)
    assert np.all(np.isnan(found[2]))
    assert np.all(found[3] == -np.inf)
    assert np.all(found[4] == np.finfo(np.float32).max)
