"""What the bits of the CPU handler of GDN may depend on: the sequence, nothing else. Oracle: the same row computed alone."""

import hashlib
import itertools
import os
import subprocess
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest
from gdn_rows_cases import Batch, random_batch, run
from gdn_rows_oracle import Geometry

from onecat_jax import _ext

pytestmark = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="about the handler that runs on CPU"
)
SMALL = Geometry(slots=10)
TINY = Geometry(4, 8, 128, 128, layers=2, slots=10)
ISAS = ("generic", "avx2", "avx512", "amx")


def of_row(x: Batch, found, b: int):
    return found[0][b], found[1][x.slots[b]], found[2][x.slots[b]]


def same(a, b) -> bool:
    return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("geometry", [SMALL, TINY], ids=["small", "tiny"])
@pytest.mark.parametrize("width", [1, 4])
def test_a_row_has_the_same_bits_whatever_stands_beside_it(geometry, width):
    x = random_batch(geometry, [width] * 5 + [0, 1, width], width)
    alone = [of_row(x.row(b), run(x.row(b)), 0) for b in range(8)]
    for order in ([0, 1], [3, 1, 0], [7, 6, 5, 4, 3, 2, 1, 0]):
        some = x.rows(order)
        found = run(some)
        for place, b in enumerate(order):
            if x.count[b]:
                assert same(of_row(some, found, place), alone[b])


@pytest.mark.parametrize("window_dtype", ["float32", "float16"])
@pytest.mark.parametrize("cuts", [[0, 1, 2, 3, 4, 5, 6, 7, 8, 16], [0, 5, 6, 16], [0, 15, 16]])
def test_cutting_a_sequence_into_calls_changes_no_bit(cuts, window_dtype):
    whole = random_batch(SMALL, [16, 16], 16, window_dtype=window_dtype)
    whole = replace(whole, qkv=whole.qkv + np.float32(1e-4))  # not exact in float16
    want = run(whole)
    states, windows, outs = whole.states, whole.windows, []
    for a, b in itertools.pairwise(cuts):
        part = replace(
            whole, qkv=whole.qkv[:, a:b], gates=whole.gates[:, a:b], states=states, windows=windows,
            start=whole.start + a, count=np.full(2, b - a, np.int32),
        )  # fmt: skip
        out, states, windows = run(part)
        outs.append(out)
    assert same((np.concatenate(outs, axis=1), states, windows), want)


def test_padding_rows_change_no_bit():
    x = random_batch(SMALL, [3, 2], 3)
    wide = replace(
        x,
        qkv=np.pad(x.qkv, ((0, 0), (0, 13), (0, 0)), constant_values=np.nan),
        gates=np.pad(x.gates, ((0, 0), (0, 13), (0, 0)), constant_values=np.nan),
    )
    wide.qkv[1, 2], wide.gates[1, 2] = np.nan, np.nan
    found, want = run(wide), run(x)
    assert same((found[0][:, :3], *found[1:]), want)
    assert not found[0][:, 3:].any()


@pytest.mark.parametrize("window_dtype", ["float32", "float16", "bfloat16"])
def test_every_instruction_set_gives_the_same_bits(window_dtype):
    x = random_batch(Geometry(2, 4, 64, 48), [7, 3, 1], 7, window_dtype=window_dtype)
    best = _ext.cpu_isa()
    try:
        results = {}
        for isa in ISAS[: ISAS.index(best) + 1]:
            _ext.force_cpu_isa(isa)
            results[isa] = run(x)
    finally:
        _ext.force_cpu_isa("")
    for isa, found in results.items():
        assert same(found, results["generic"]), isa


def digest() -> str:
    """Of results large enough to be split over threads."""
    found = run(random_batch(TINY, [2] * 6, 2))
    return hashlib.sha256(b"".join(a.tobytes() for a in found)).hexdigest()


_ONE_CORE = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
sys.path.insert(0, sys.argv[1])
import test_gdn_rows_bits
print(test_gdn_rows_bits.digest())
"""


def test_the_number_of_threads_changes_no_bit():
    child = subprocess.run(
        [sys.executable, "-c", _ONE_CORE, os.path.dirname(__file__)],
        capture_output=True,
        text=True,
        check=True,
        cwd=os.path.dirname(__file__),  # not where a source folder hides the installed package
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert child.stdout.strip() == digest()


def test_the_same_call_gives_the_same_bits_fifty_times():
    x = random_batch(TINY, [1] * 4, 1)
    first = run(x)
    assert all(same(run(x), first) for _ in range(50))
