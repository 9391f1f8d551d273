"""Products of the parts of a split linear. Oracle: float64 products of the whole matrix, and our own product of the whole one.

Covered: dense and NVFP4 weights, split along N and along K, on the handlers of this machine and in plain JAX. Not covered: the
sum over devices, which the parity tests of several ranks go through.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sharding_oracle as oracle

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import (
    DenseTensor,
    Layer,
    LinearRoute,
    NVFP4Tensor,
    build_linear,
    linear,
)
from onecat_jax.models.slices import HostTensor, cut_tensor
from onecat_jax.models.spec import Section, TensorSpec

N, K, M = 96, 256, 5
FORMATS = ["dense", "nvfp4"]
ROUTES = {"handlers": Policy(), "plain": Policy("plain")}
ROUNDING = 1e-6  # relative to the norm; float32 sums of 256 products


def tensor(form: str, seed: int = 0) -> DenseTensor | NVFP4Tensor:
    rng = np.random.default_rng(seed)
    if form == "dense":
        return DenseTensor(rng.standard_normal((N, K), np.float32))
    codes = rng.integers(0, 256, (N, K // 2), np.uint8)
    return NVFP4Tensor(codes, rng.integers(0x20, 0x48, (N, K // 16), np.uint8), np.float32(0.02))


def spec(split: str, units: int) -> TensorSpec:
    n, k = (Section("embed", N, N),), (Section("embed", K, K),)
    if split == "sections":  # three that are split each on its own, as query, key and value are
        return TensorSpec("linear", (tuple(Section("heads", N // 3, units) for _ in range(3)), k))
    if split == "n":
        return TensorSpec("linear", ((Section("heads", N, units),), k))
    return TensorSpec("linear", (n, (Section("heads", K, units),)))


def product(x: np.ndarray, weight: HostTensor, policy: Policy) -> np.ndarray:
    """float32 [M, N]"""
    assert not isinstance(weight, np.ndarray)
    placed = build_linear([[weight]], route=LinearRoute(policy), dtype=jnp.float32)
    return np.asarray(linear(jnp.asarray(x), placed, Layer(0), policy=policy))


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def rows_of(split: str, rank: int, ranks: int) -> np.ndarray:
    sections = 3 if split == "sections" else 1
    whole = np.arange(N).reshape(sections, ranks, -1)
    return whole[:, rank].reshape(-1)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("split", ["n", "sections"])
def test_products_of_row_parts_are_the_rows_of_the_product(split, ranks, form, route):
    whole, policy = tensor(form), ROUTES[route]
    x = np.random.default_rng(1).standard_normal((M, K), np.float32)
    expected = x.astype(np.float64) @ oracle.values(whole).T
    found = np.empty((M, N), np.float32)
    for rank in range(ranks):
        own = cut_tensor("w", whole, spec(split, 8), rank, ranks)
        found[:, rows_of(split, rank, ranks)] = product(x, own, policy)
    assert relative(found, expected) < ROUNDING
    if route == "handlers" and jax.default_backend() == "cpu":  # one order of summation for any N
        np.testing.assert_array_equal(found, product(x, whole, policy))
    assert relative(found, product(x, whole, policy)) < ROUNDING


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_products_of_column_parts_add_up_to_the_product(ranks, form, route):
    whole, policy = tensor(form), ROUTES[route]
    x = np.random.default_rng(1).standard_normal((M, K), np.float32)
    expected = x.astype(np.float64) @ oracle.values(whole).T
    each = K // ranks
    parts = [
        product(
            x[:, r * each : (r + 1) * each], cut_tensor("w", whole, spec("k", 8), r, ranks), policy
        )
        for r in range(ranks)
    ]
    assert relative(np.sum(parts, axis=0, dtype=np.float32), expected) < ROUNDING
    assert relative(np.sum(parts, axis=0), product(x, whole, policy)) < ROUNDING


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("split", "ranks"), [("n", 4), ("sections", 4), ("k", 4), ("k", 8)])
def test_a_packed_part_decodes_to_the_values_of_the_part(split, ranks, route):
    """A product with single ones reads the weight out; eight ranks leave K = 32, the least that a packed layout holds."""
    whole = tensor("nvfp4")
    for rank in range(ranks):
        own = cut_tensor("w", whole, spec(split, 8), rank, ranks)
        expected = oracle.values(own)
        found = product(np.eye(expected.shape[1], dtype=np.float32), own, ROUTES[route]).T
        np.testing.assert_allclose(found, expected, rtol=2e-7)
