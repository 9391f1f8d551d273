"""The V100 kernels keep what makes them bound by memory: no spills, little shared memory, few instructions per byte.

Oracle: the embedded images themselves, and the model of bench_sm70.py. Nothing here runs on a GPU.
"""

import pytest

from onecat_jax.cli.bench_sm70 import SHARED_BYTES, Report, reports
from onecat_jax.cli.main import main

REPORTS = list(reports())
EVERY = pytest.mark.parametrize("report", REPORTS, ids=[r.name for r in REPORTS])
UP_TO_16 = [r for r in REPORTS if "_x32_" not in r.name]


def test_every_kind_and_size_is_among_the_reports():
    names = {r.name for r in REPORTS}
    assert {"nvfp4 linear_x8_w4", "fp8 linear_x16_w8_blocks", "int4 linear_x32_w4_halves"} <= names
    assert len(names) == 6 * 6


@EVERY
def test_no_register_is_spilled_and_shared_memory_suffices(report: Report):
    assert report.stack_bytes == 0
    assert 0 < report.shared_bytes <= SHARED_BYTES
    assert report.blocks_per_multiprocessor >= 1


@EVERY
def test_the_main_loop_was_found(report: Report):
    rows = int(report.name.split("linear_x")[1].split("_")[0])
    units_k = 32 if report.name.startswith("fp8") else 64
    assert report.products == 4 * units_k // 4 * rows // 8
    assert report.loads_128 >= 8


@pytest.mark.parametrize("report", UP_TO_16, ids=[r.name for r in UP_TO_16])
def test_up_to_16_rows_memory_is_the_bound(report: Report):
    assert report.of_memory >= 1.5


def test_the_command_prints_the_chosen_kernels(capsys):
    assert main(["bench", "sm70", "--only", "nvfp4 x8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all("nvfp4 linear_x8" in line and "0 spilled" in line for line in lines)
