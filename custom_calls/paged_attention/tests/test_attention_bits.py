"""What the bits of the CPU attention handler may depend on: a row's position and the keys up to it, nothing else."""

import hashlib
import os
import subprocess
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest
from attention_oracle import TYPES, random_batch, repaged, run

from onecat_jax import _ext

pytestmark = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="about the handler that runs on CPU"
)
ISAS = ("generic", "avx2", "avx512", "amx")


def test_a_row_has_the_same_bits_whatever_stands_beside_it():
    x = random_batch([77, 130, 5, 64, 300, 1], width=2, count=[2, 2, 2, 2, 2, 1])
    alone = [run(x.rows([b]))[0] for b in range(6)]
    for order in ([0, 1], [5, 4, 3, 2, 1, 0], [2, 4]):
        found = run(x.rows(order))
        for place, b in enumerate(order):
            assert np.array_equal(found[place], alone[b])


@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (12, 1), (40, 2)])
@pytest.mark.parametrize("cache", ["float32", "float8_e4m3fn"])
def test_prefill_and_verify_rows_equal_decode_rows(heads, cache):
    """T rows in one call and one row in each of T calls, across page and tile borders."""
    width = 40
    x = random_batch([70, 40, 200], width=width, heads=heads, cache=cache)
    together = run(x)
    for t in range(0, width, 3):
        one = replace(x, q=x.q[:, t : t + 1], start=x.start + t, count=np.ones(3, np.int32))
        assert np.array_equal(run(one)[:, 0], together[:, t]), t


def test_later_tokens_do_not_reach_earlier_rows_even_as_nan():
    x = random_batch([70], width=6, heads=(4, 2))
    before = run(x)
    for position in range(67, 70):
        at = (x.first + x.table[0, position // 16], position % 16)
        x.k_pages[at], x.v_pages[at] = np.nan, np.inf
    assert np.array_equal(run(x)[0, :3], before[0, :3])


def test_page_numbers_page_size_and_table_width_change_no_bit():
    found = [
        run(random_batch([77, 130], width=2, page=16, spare=3)),
        run(random_batch([77, 130], width=2, page=16, spare=0)),
    ]
    assert np.array_equal(found[0], found[1])
    x = random_batch([77, 130], width=2)
    moved = repaged(x, 32)
    assert np.array_equal(run(x), run(moved))


@pytest.mark.parametrize("cache", list(TYPES))
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_instruction_set_gives_the_same_bits(cache, dtype):
    x = random_batch([7, 70, 150], width=7, heads=(6, 2), dim=80, cache=cache, dtype=dtype)
    best = _ext.cpu_isa()
    try:
        results = {}
        for isa in ISAS[: ISAS.index(best) + 1]:
            _ext.force_cpu_isa(isa)
            results[isa] = [run(x), run(x, window=37), run(x, window=65, causal=False)]
    finally:
        _ext.force_cpu_isa("")
    for isa, found in results.items():
        for ours, generic in zip(found, results["generic"], strict=True):
            assert np.array_equal(ours, generic), isa


def digest() -> str:
    """Of results large enough to be split over threads."""
    x = random_batch([600, 513, 900], dim=128, heads=(8, 4), width=3)
    found = [run(x), run(x, window=500, causal=False)]
    return hashlib.sha256(b"".join(a.tobytes() for a in found)).hexdigest()


_ONE_CORE = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
sys.path.insert(0, sys.argv[1])
import test_attention_bits
print(test_attention_bits.digest())
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
