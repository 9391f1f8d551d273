"""The handler runtime without a GPU: registration, choice of device images, choice of instruction set."""

import re

import pytest

from onecat_jax import _ext
from onecat_jax.custom_calls.registration import register


def test_target_names_carry_an_abi_number():
    names = register()
    assert names
    for name in names:
        assert re.fullmatch(r"onecat_[a-z0-9_]+_v\d+", name), name


def test_gpu_targets_load_their_kernels_before_the_first_run():
    """So that nothing is loaded while a command buffer is recorded."""
    for name, platform, stages in _ext.registrations():
        if platform == "CUDA":
            assert "initialize" in stages, name


@pytest.mark.parametrize(
    ("module", "capability", "architecture"),
    [
        ("nvfp4_m8n8k4", 70, "sm_70"),
        ("nvfp4_m8n8k4", 72, "sm_70"),
        ("nvfp4_m8n8k4", 75, "sm_70"),
        ("nvfp4_m8n8k4", 90, "compute_70"),
        ("nvfp4_m16n8k16", 80, "sm_80"),
        ("nvfp4_m16n8k16", 89, "sm_80"),
        ("nvfp4_m16n8k16", 90, "sm_90"),
        ("nvfp4_m16n8k16", 120, "compute_80"),
    ],
)
def test_an_image_is_machine_code_of_the_same_major_else_ptx(module, capability, architecture):
    found, reason = _ext.choose_image(module, capability)
    assert found == architecture
    assert reason.startswith("machine code for compute capability") == found.startswith("sm_")


def test_a_device_without_an_image_is_told_what_there_is():
    found, reason = _ext.choose_image("nvfp4_m16n8k16", 70)
    assert found == ""
    assert reason == (
        "module nvfp4_m16n8k16 has images for sm_80, sm_90, compute_80, none of which runs on compute capability 7.0"
    )


def test_ptx_can_be_forced():
    _ext.force_ptx(True)
    try:
        assert _ext.choose_image("nvfp4_m16n8k16", 90) == ("compute_80", "PTX was forced")
    finally:
        _ext.force_ptx(False)


def test_every_embedded_image_has_code():
    assert all(size > 1000 for _, _, size in _ext.images())


def test_a_machine_without_a_driver_says_so():
    version, error = _ext.cuda_driver()
    assert (version > 0) == (error == "")
    if error:
        assert "libcuda" in error or "cuInit" in error


def test_an_unknown_instruction_set_is_refused():
    with pytest.raises(
        ValueError, match="instruction set is 'sse', must be generic, avx2, avx512 or amx"
    ):
        _ext.force_cpu_isa("sse")
