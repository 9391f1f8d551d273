"""Fixtures of the GPU tests of the gated delta rule."""

import jax
import pytest

from onecat_jax import _ext
from onecat_jax.custom_calls.dispatch import Policy


@pytest.fixture(params=["own", "own as ptx"])
def policy(request):
    """The policy under test; the image that must serve it is checked afterwards."""
    _ext.force_ptx(request.param == "own as ptx")
    jax.clear_caches()
    yield Policy(strict=True)
    loaded = _ext.loaded_architecture(request.module.KERNELS)
    _ext.force_ptx(False)
    jax.clear_caches()
    wanted = "compute_" if request.param == "own as ptx" else "sm_"
    assert loaded.startswith(wanted), loaded
