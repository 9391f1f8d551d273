"""The DFlash2 round of the 27B model compiles for V100s: it fits, every NVFP4 linear, attention and GDN is a kernel of
ours, and no buffer of the size of a cache or a stack of weights is made anew in a round; of single layers the library's product
copies the gate projections (1 MB each), which no kernel for V100s takes yet.

Oracle: XLA's optimised HLO for compute capability 7.0, which needs jax-cuda12-plugin but no GPU: `pytest -n 0 -m oracle` in an
environment with onecat-jax[cuda12]. Shapes and formats are the published ones (bench/synthetic.py). Not covered: time.
"""

import importlib.util
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "bench" / "v100_round.py"
pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(
        importlib.util.find_spec("jax_cuda12_plugin") is None, reason="needs jax-cuda12-plugin"
    ),
]
TEMPORARIES = 64e6  # bytes
LAYERS = 4  # of a superblock


@cache
def report(ranks: int) -> dict:
    environment = {k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"}
    command = [sys.executable, str(SCRIPT), "--ranks", str(ranks), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print("\n" + json.dumps(found, indent=1))
    return found


@pytest.fixture(params=[1, 4], ids=["tp1", "tp4"])
def found(request):
    return report(request.param)


def test_a_round_fits_on_a_v100(found):
    assert found["fits"]
    assert found["temp_bytes"] < TEMPORARIES


def test_no_buffer_of_the_size_of_a_cache_or_a_weight_is_made_in_a_round(found):
    assert found["copies_of_caches_or_weights"] == {}
    assert found["large_buffers"] == {}


def test_of_single_layers_only_the_gate_projections_are_copied(found):
    heads = 2 * 48 // found["ranks"]
    assert all(f"f16[1,{heads},5120]" in made for made in found["copies_of_layers"])
    assert len(found["copies_of_layers"]) <= 1


def test_linears_attention_and_gdn_of_a_superblock_are_kernels_of_ours(found):
    calls = found["calls_per_superblock"]
    assert calls["onecat_nvfp4_linear_gpu_v2"] == 4 * LAYERS
    assert calls["onecat_attend_rows_gpu_v1"] == calls["onecat_write_heads_gpu_v1"] == 1
    assert calls["onecat_gdn_verify_kept_rows_gpu_v1"] == LAYERS - 1
