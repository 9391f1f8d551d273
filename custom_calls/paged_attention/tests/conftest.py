"""Fixtures of the GPU tests of attention."""

import jax
import pytest

from onecat_jax import _ext
from onecat_jax.custom_calls.dispatch import Policy, Target


@pytest.fixture(params=["own", "own as ptx", "sm_70"])
def policy(request):
    """The policy under test; the image that must serve it is checked afterwards."""
    own = Target.detect()
    target = Target("gpu", 70) if request.param == "sm_70" else own
    family = "m8n8k4" if target.capability < 80 else "m16n8k16"
    _ext.force_ptx(request.param == "own as ptx")
    jax.clear_caches()
    yield Policy(strict=True, target=target)
    loaded = _ext.loaded_architecture(f"{request.module.KERNELS}_{family}")
    _ext.force_ptx(False)
    jax.clear_caches()
    translated = request.param == "own as ptx" or target != own
    assert loaded.startswith("compute_" if translated else "sm_"), loaded
