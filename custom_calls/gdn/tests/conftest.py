"""Fixtures of the GPU tests of the gated delta rule."""

from collections.abc import Iterator

import jax
import pytest

from onecat_jax import _ext
from onecat_jax.custom_calls.dispatch import Policy, Target


def _forced(ptx: bool, policy: Policy, module: str, wanted: str) -> Iterator[Policy]:
    """The policy under test; the image that served it is checked afterwards."""
    _ext.force_ptx(ptx)
    jax.clear_caches()
    yield policy
    loaded = _ext.loaded_architecture(module)
    _ext.force_ptx(False)
    jax.clear_caches()
    assert loaded.startswith(wanted), loaded


@pytest.fixture(params=["own", "own as ptx"])
def policy(request):
    """For the kernels of few rows, which are the same on all GPUs."""
    ptx = request.param == "own as ptx"
    wanted = "compute_" if ptx else "sm_"
    yield from _forced(ptx, Policy(strict=True), "gdn_rows", wanted)


@pytest.fixture(params=["own", "own as ptx", "sm_70"])
def chunk_policy(request):
    """For the kernels of long inputs, of which there are two families."""
    own = Target.detect()
    target = Target("gpu", 70) if request.param == "sm_70" else own
    family = "m8n8k4" if target.capability < 80 else "m16n8k16"
    ptx = request.param == "own as ptx"
    wanted = "compute_" if ptx or target != own else "sm_"
    yield from _forced(ptx, Policy(strict=True, target=target), f"gdn_chunks_{family}", wanted)
