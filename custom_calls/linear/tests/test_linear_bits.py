"""What the bits of a result may depend on: the row, the weight, nothing else.

Oracle: the same row computed alone. Holds on the handlers' routes, on CPU for every number of rows, on a GPU up to 64.
"""

import hashlib
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import linear_oracle as oracle
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from onecat_jax import _ext
from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import DenseTensor, Layer, LinearRoute, build_linear, linear

ON_GPU = jax.default_backend() == "gpu"
DTYPE = jnp.float16 if ON_GPU else jnp.float32
COUNTS = (2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 31, 33, 64) + (() if ON_GPU else (65, 130))
ISAS = ("generic", "avx2", "avx512", "amx")

cpu_only = pytest.mark.skipif(ON_GPU, reason="about the CPU handlers")


def built(kind: str, n: int, k: int, layers: int = 1):
    rng = np.random.default_rng(n + k)
    stack = [[oracle.MAKERS[kind](rng, n, k)] for _ in range(layers)]
    return build_linear(stack, route=LinearRoute(), dtype=DTYPE)


def some_rows(m: int, k: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(m).standard_normal((m, k)), DTYPE)


def run(x, weight, at: int = 0) -> np.ndarray:
    return np.asarray(linear(x, weight, Layer(at), out_dtype=jnp.float32, policy=Policy()))


def available_isas() -> list[str]:
    best = _ext.cpu_isa()
    return list(ISAS[: ISAS.index(best) + 1])


def orders_of_addition() -> list[str]:
    """Instruction sets that add in different orders: all vectors do it alike, matrix units in their own way."""
    best = _ext.cpu_isa()
    return ["avx512", "amx"] if best == "amx" else [best]


@pytest.fixture
def force_isa():
    yield _ext.force_cpu_isa
    _ext.force_cpu_isa("")


@pytest.mark.parametrize(
    ("kind", "n", "k"),
    [
        ("nvfp4", 100, 288),
        ("nvfp4", 33, 2080),
        ("fp8 row", 33, 1312),
        ("fp8 block", 100, 288),
        ("int4 32", 100, 288),
        ("int4 128 ordered", 33, 1280),
        pytest.param("dense", 45, 1043, marks=cpu_only),
        pytest.param("bfloat16", 45, 1056, marks=cpu_only),
    ],
)
@pytest.mark.parametrize("isa", orders_of_addition())
def test_a_row_has_the_same_bits_whatever_stands_beside_it(kind, n, k, isa, force_isa):
    force_isa(isa)
    weight = built(kind, n, k)
    x = some_rows(130, weight.k)
    alone = np.concatenate([run(x[i : i + 1], weight) for i in range(8)])
    for m in COUNTS:
        assert np.array_equal(run(x[:m], weight)[:8], alone[:m]), m
        rolled = jnp.roll(x[:m], 1, axis=0)
        assert np.array_equal(np.roll(run(rolled, weight), -1, axis=0)[:8], alone[:m]), m


@pytest.mark.parametrize("kind", ["nvfp4", "fp8 block", "int4 96"])
def test_the_same_call_gives_the_same_bits_a_hundred_times(kind):
    weight, x = built(kind, 160, 1056), some_rows(11, 1056)
    first = run(x, weight)
    call = jax.jit(lambda x, w: linear(x, w, Layer(0), out_dtype=jnp.float32, policy=Policy()))
    assert all(np.array_equal(np.asarray(call(x, weight)), first) for _ in range(100))


@cpu_only
@pytest.mark.parametrize(
    ("kind", "k"), [(kind, 1152) for kind in oracle.MAKERS] + [("bfloat16", 1043)]
)
def test_every_instruction_set_gives_the_same_bits(kind, k, force_isa):
    """But matrix units, where they are used: test_linear_matrix_units.py."""
    weight = built(kind, 100, k)
    x = some_rows(20, weight.k)
    results = {}
    for isa in available_isas():
        if isa == "amx" and (kind, k) in (("nvfp4", 1152), ("bfloat16", 1152)):
            continue
        force_isa(isa)
        results[isa] = [run(x[:m], weight) for m in (1, 2, 5, 8, 9, 20)]
    for isa, found in results.items():
        for a, b in zip(found, results["generic"], strict=True):
            assert np.array_equal(a, b), isa


def digest() -> str:
    """Of results large enough to be split over threads."""
    x, found = some_rows(9, 384), hashlib.sha256()
    for kind in ("nvfp4", "fp8 row", "fp8 block", "int4 128"):
        weight = built(kind, 2304, 384)
        found.update(run(x[:1], weight).tobytes() + run(x, weight).tobytes())
    return found.hexdigest()


_ONE_CORE = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
sys.path.insert(0, sys.argv[1])
import test_linear_bits
print(test_linear_bits.digest())
"""


@cpu_only
def test_the_number_of_threads_changes_no_bit():
    here = os.path.dirname(__file__)
    child = subprocess.run(
        [sys.executable, "-c", _ONE_CORE, here],
        capture_output=True,
        text=True,
        check=True,
        cwd=here,
    )
    assert child.stdout.split()[-1] == digest()


@pytest.mark.parametrize(
    "kind", ["nvfp4", "dense", "fp8 row", "fp8 block", "int4 32", "int4 128 ordered"]
)
def test_a_loop_over_layers_picks_each_layer_by_index_times_mul_plus_add(kind):
    weight = built(kind, 40, 128, layers=6)
    x = some_rows(4, 128)

    @jax.jit
    def loop(x, weight):
        def body(i, out):
            y = linear(x, weight, Layer(i, 3, 1), out_dtype=jnp.float32, policy=Policy())
            return lax.dynamic_update_index_in_dim(out, y, i, 0)

        return lax.fori_loop(0, 2, body, jnp.zeros((2, 4, 40), jnp.float32))

    found = np.asarray(loop(x, weight))
    for i in range(2):
        assert np.array_equal(found[i], run(x, weight, 3 * i + 1))


@cpu_only
def test_separate_arrays_give_the_bits_of_a_stack():
    rng = np.random.default_rng(12)
    layers = [[oracle.random_dense(rng, 24, 50)] for _ in range(3)]
    x = some_rows(3, 50)
    stacked = build_linear(layers, route=LinearRoute(), dtype=DTYPE)
    separate = build_linear(layers, route=LinearRoute(separate=True), dtype=DTYPE)
    assert isinstance(separate.weight, tuple)
    for at in range(3):
        assert np.array_equal(run(x, stacked, at), run(x, separate, at))


def test_an_unrolled_program_and_vmap_keep_the_bits():
    weight, x = built("nvfp4", 40, 96, layers=2), some_rows(6, 96).reshape(2, 3, 96)

    def both(x):
        return [linear(x, weight, Layer(i), policy=Policy()) for i in range(2)]

    jitted, mapped = jax.jit(both)(x), jax.vmap(both)(x)
    for i in range(2):
        assert np.array_equal(np.asarray(jitted[i]), np.asarray(mapped[i]))


@cpu_only
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("stored", [ml_dtypes.bfloat16, np.float16])
def test_weights_kept_in_16_bits_give_the_bits_of_float32_ones(stored, separate):
    rng = np.random.default_rng(13)
    narrow = [rng.standard_normal((24, 50)).astype(stored) for _ in range(2)]
    route = LinearRoute(separate=separate)
    kept = build_linear([[DenseTensor(w)] for w in narrow], route=route, dtype=DTYPE)
    layers = [[DenseTensor(w.astype(np.float32))] for w in narrow]
    wide = build_linear(layers, route=route, dtype=DTYPE)
    assert wide.dtype == np.float32
    assert kept.dtype == stored
    for rows in (1, 8, 17):
        x = some_rows(rows, 50)
        for at in range(2):
            assert np.array_equal(run(x, wide, at), run(x, kept, at))


@cpu_only
@pytest.mark.parametrize("layers", [[0, 1], [1, 0], [1, 2, 1]])
def test_weights_of_several_dtypes_are_placed_in_float32(layers):
    rng = np.random.default_rng(14)
    dtypes = (np.float32, ml_dtypes.bfloat16, np.float16)
    stored = [rng.standard_normal((8, 32)).astype(dtypes[i]) for i in layers]
    stack = build_linear([[DenseTensor(w)] for w in stored], route=LinearRoute(), dtype=DTYPE)
    assert stack.dtype == np.float32
    assert np.array_equal(stack.weight, np.stack([w.astype(np.float32) for w in stored]))
    siblings = build_linear([[DenseTensor(w) for w in stored]], route=LinearRoute(), dtype=DTYPE)
    assert siblings.dtype == np.float32
    assert np.array_equal(
        siblings.weight[0], np.concatenate([w.astype(np.float32) for w in stored])
    )
