"""`onecat check` about versions, devices and the extension. Oracle: the pins that a V100 needs.

Versions and devices are made up here: no machine has all the faults at once.
"""

import argparse
import sys

import pytest

from onecat_jax.cli import check, environment
from onecat_jax.cli.environment import Row

GOOD = {
    "jax": "0.10.2",
    "jaxlib": "0.10.2",
    "jax-cuda12-plugin": "0.10.2",
    "nvidia-cudnn-cu12": "9.10.2.21",
}


def rows(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], capabilities: list[int]
) -> dict[str, Row]:
    monkeypatch.setattr(environment, "version_of", lambda name: versions.get(name, ""))
    monkeypatch.setattr(environment, "_capabilities", lambda: capabilities)
    return {row.name: row for row in environment.environment()}


def test_the_pins_of_a_v100_are_accepted(monkeypatch: pytest.MonkeyPatch):
    found = rows(monkeypatch, GOOD, [70])
    assert {found[name].status for name in ("jax", "jaxlib", "cuda plugin", "cudnn")} == {"ok"}


@pytest.mark.parametrize(
    ("name", "version", "row", "advice"),
    [
        ("jax", "0.9.2", "jax", "install jax from 0.10.2 on"),
        ("jax", "0.13.0", "jax", "below 0.13"),
        ("jaxlib", "0.9.0", "jaxlib", "install jaxlib 0.10.2"),
        ("jax-cuda12-plugin", "0.9.0", "cuda plugin", "jax-cuda12-plugin[with-cuda]==0.10.2"),
        ("nvidia-cudnn-cu12", "9.11.0.98", "cudnn", "nvidia-cudnn-cu12==9.10.2.21"),
        ("nvidia-cudnn-cu12", "", "cudnn", "nvidia-cudnn-cu12==9.10.2.21"),
        ("jax-cuda13-plugin", "0.10.2", "cuda plugin", "it needs compute capability 7.5"),
    ],
)
def test_a_wrong_version_fails_with_the_right_one(
    monkeypatch: pytest.MonkeyPatch, name: str, version: str, row: str, advice: str
):
    found = rows(monkeypatch, GOOD | {name: version}, [70])[row]
    assert found.status == "fail"
    assert advice in found.advice


def test_a_plugin_of_cuda_13_needs_the_version_of_jax(monkeypatch: pytest.MonkeyPatch):
    found = rows(monkeypatch, {**GOOD, "jax-cuda13-plugin": "0.9.0"}, [90])["cuda plugin"]
    assert (found.status, found.advice) == ("fail", "install jax-cuda13-plugin[with-cuda]==0.10.2")


def test_other_gpus_take_other_versions(monkeypatch: pytest.MonkeyPatch):
    newer = {"nvidia-cudnn-cu12": "9.28.0.1", "jax-cuda13-plugin": "0.10.2"}
    found = rows(monkeypatch, GOOD | newer, [90])
    assert {found[name].status for name in ("cuda plugin", "cudnn")} == {"ok"}


def test_every_gpu_served_finds_device_code_of_its_own(monkeypatch: pytest.MonkeyPatch):
    found = rows(monkeypatch, GOOD, [70, 80, 90])
    for capability, image in (("7.0", "sm_70"), ("8.0", "sm_80"), ("9.0", "sm_90")):
        assert found[f"images for {capability}"].status == "ok"
        assert image in found[f"images for {capability}"].found


def test_a_gpu_without_device_code_is_a_warning(monkeypatch: pytest.MonkeyPatch):
    assert rows(monkeypatch, GOOD, [60])["images for 6.0"].status == "warn"


def test_a_missing_extension_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "onecat_jax._ext", None)
    monkeypatch.delattr("onecat_jax._ext", raising=False)
    parser = argparse.ArgumentParser()
    check.configure(parser)
    args = parser.parse_args(["tiny"])
    assert args.run(args) == 1
    out = capsys.readouterr().out
    assert "fail  extension" in out
    assert "reinstall onecat-jax" in out
    assert "repair the extension first" in out


def test_every_kind_of_weight_has_a_row_with_its_route(monkeypatch: pytest.MonkeyPatch):
    found = rows(monkeypatch, GOOD, [70])
    routes = {name: row for name, row in found.items() if name.startswith("route linear ")}
    assert set(routes) == {f"route linear {kind}" for kind in ("nvfp4", "fp8", "int4", "dense")}
    for row in routes.values():
        assert (row.status, row.found.split(",")[0]) == ("ok", "cpu handler")


def test_an_unwritable_cache_is_a_warning(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    found = rows(monkeypatch, GOOD, [])["compile cache"]
    assert found.status == "warn"
    assert "JAX_COMPILATION_CACHE_DIR" in found.advice
