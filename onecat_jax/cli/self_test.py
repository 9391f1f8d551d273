"""Every kernel of linears and attention against float64, on the device at hand."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from onecat_jax.cli.environment import Row
from onecat_jax.cli.self_test_attention import ADVICE, attention_rows
from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import (
    HostMatrix,
    Layer,
    LinearDescriptor,
    LinearRoute,
    WeightKind,
    build_linear,
    exact_matrix,
    linear,
)
from onecat_jax.custom_calls.linear.samples import SAMPLES, random_tensor

SHAPES = ((100, 288), (1024, 5120), (40, 17408))  # tails; activations in registers; a long K
ROWS = (1, 8, 16, 40, 70)  # every kernel, and the expansion for many rows
BOUND = 1e-5  # of the largest result
BOUND_EXPANDED = 1e-3  # the same where the weight is rounded to float16
FEW_ROWS = 64


def self_test_rows() -> Iterator[Row]:
    """One row per kind of weight and type of cache: the largest error, relative to the largest result, and the route."""
    for kind in SAMPLES:
        yield _tested(kind)
    yield from attention_rows()


def _tested(kind: str) -> Row:
    dtype = jnp.float16 if jax.default_backend() == "gpu" else jnp.float32
    name, worst, bad = f"self-test {kind}", 0.0, ""
    for n, k in SHAPES:
        k = k if kind != "int4 128" else -(-k // 128) * 128
        tensor = random_tensor(np.random.default_rng(n), kind, n, k)
        weight = build_linear([[tensor], [tensor]], route=LinearRoute(Policy()), dtype=dtype)
        matrix = exact_matrix(tensor)
        for m in ROWS:
            x = jnp.asarray(np.random.default_rng(m).standard_normal((m, k)), dtype)
            y = np.asarray(linear(x, weight, Layer(1), out_dtype=jnp.float32), np.float64)
            expected = np.asarray(x, np.float64) @ matrix.T
            error = float(np.max(np.abs(y - expected)) / np.max(np.abs(expected)))
            worst = max(worst, error if np.isfinite(error) else float("inf"))
            if not error < (BOUND if m <= FEW_ROWS else BOUND_EXPANDED):
                bad = bad or f"[{n}, {k}] with {m} rows is off by {error:.1e}"
    route = _route(kind, tensor, dtype)
    if bad:
        return Row(name, "fail", f"{route}: {bad}", ADVICE)
    return Row(name, "ok", f"{route}: error at most {worst:.1e}")


def _route(kind: str, tensor: HostMatrix, dtype: jnp.dtype) -> str:
    n, k = exact_matrix(tensor).shape
    kinds: dict[str, WeightKind] = {
        "nvfp4": "nvfp4",
        "fp8": "fp8",
        "int4": "int4",
        "float16": "dense",
    }
    weight = kinds[kind.split()[0]]
    return LinearRoute(Policy()).plan(LinearDescriptor(weight, n, k, dtype)).name
