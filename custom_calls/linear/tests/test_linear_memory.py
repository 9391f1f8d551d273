"""On a handler's route no buffer of a weight's size is made for up to 64 rows. Oracle: the optimised HLO of a layer loop."""

import math
import re

import jax
import jax.numpy as jnp
import linear_oracle as oracle
import numpy as np
import pytest
from jax import lax

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import Layer, LinearRoute, build_linear, linear

DTYPE = jnp.float16 if jax.default_backend() == "gpu" else jnp.float32
BYTES = {"f32": 4, "f16": 2, "bf16": 2, "u8": 1, "s8": 1, "u32": 4, "s32": 4, "pred": 1}
NOT_MADE = {
    "parameter",
    "get-tuple-element",
    "tuple",
    "while",
    "bitcast",
}  # these name buffers, they make none
LAYERS, N, K = 4, 256, 512
PACKED_BYTES = {
    "nvfp4": 9 / 16,
    "fp8 tensor": 1 + 1 / 128,
    "fp8 block": 1 + 1 / 32,
    "int4 128": 1 / 2 + 3 / 128,
}


def largest_buffer(text: str) -> int:
    """Bytes of the largest result of any instruction that makes a buffer."""
    sizes = [0]
    for dtype, dims, op in re.findall(r"= (\w+)\[([\d,]*)\]\S* ([\w-]+)\(", text):
        if op not in NOT_MADE:
            sizes.append(BYTES.get(dtype, 8) * math.prod(int(d) for d in dims.split(",") if d))
    return max(sizes)


def compiled_loop(weight, m: int, policy: Policy) -> str:
    def program(x, weight):
        def body(i, x):
            y = linear(x, weight, Layer(i), policy=policy)
            return x + jnp.concatenate([y, y], axis=-1)

        return lax.fori_loop(0, LAYERS, body, x)

    return jax.jit(program).lower(jnp.zeros((m, K), DTYPE), weight).compile().as_text()


@pytest.mark.parametrize("m", [1, 8, 64])
@pytest.mark.parametrize("kind", ["nvfp4", "dense", "fp8 row", "fp8 block", "int4 128 ordered"])
def test_no_weight_sized_buffer_is_made(kind, m):
    if kind == "dense" and jax.default_backend() == "gpu":
        pytest.skip("dense weights on a GPU are the library's")
    rng = np.random.default_rng(0)
    layers = [[oracle.MAKERS[kind](rng, N, K)] for _ in range(LAYERS)]
    weight = build_linear(layers, route=LinearRoute(), dtype=DTYPE)
    activations = m * K * np.dtype(DTYPE).itemsize
    assert largest_buffer(compiled_loop(weight, m, Policy())) <= max(2 * activations, N * K // 8)


@pytest.mark.parametrize("kind", ["nvfp4", "fp8 block", "int4 128"])
def test_the_plain_route_does_make_one(kind):
    """The check above can fail: plain JAX decodes the whole weight."""
    rng = np.random.default_rng(0)
    policy = Policy("plain")
    layers = [[oracle.MAKERS[kind](rng, N, K)] for _ in range(LAYERS)]
    weight = build_linear(layers, route=LinearRoute(policy), dtype=DTYPE)
    assert largest_buffer(compiled_loop(weight, 8, policy)) >= 4 * N * K


@pytest.mark.parametrize("kind", PACKED_BYTES)
def test_a_packed_weight_takes_the_bytes_of_its_codes_and_scales(kind):
    """FP8 has a float32 scale per row or per row and 128 k, INT4 two bytes and a zero point per row and group."""
    layers = [[oracle.MAKERS[kind](np.random.default_rng(0), N, K)] for _ in range(LAYERS)]
    weight = build_linear(layers, route=LinearRoute(), dtype=DTYPE)
    found = sum(leaf.nbytes for leaf in jax.tree.leaves(weight))
    per_row = 4 if kind == "nvfp4" else 0  # its global scales
    assert found == LAYERS * N * (PACKED_BYTES[kind] * K + per_row)
