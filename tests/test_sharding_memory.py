"""Host memory while a checkpoint is loaded to shards: at most 1.2 times one device's shards plus the largest tensor.

What is counted: numpy's own allocations, by tracemalloc, at their highest during `load_model`. Mapped files aren't counted
(their pages belong to the system), nor is what XLA allocates. A CPU device takes over aligned host arrays instead of copying
them, so what lies on it is numpy's memory and counted; the shards of all but one device are then subtracted, which on real
devices would lie elsewhere. A device that copies, as a GPU does, is played by stacks that aren't aligned, and nothing is
subtracted.
"""

import math
import tracemalloc
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest
from checkpoints import Style, write_checkpoint
from sharding_checkpoints import LARGE, bytes_on

from onecat_jax.config import EngineConfig
from onecat_jax.loading import Checkpoint
from onecat_jax.loading.sources import find_sources
from onecat_jax.model_loader import load_model
from onecat_jax.models import registry
from onecat_jax.sharding import Placement

MODELS = ["tiny", "dense", "modelopt"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    @cache
    def opened(model: str) -> Checkpoint:
        if model == "tiny":
            return Checkpoint.open("tiny")
        folder: Path = tmp_path_factory.mktemp(model)
        return Checkpoint.open(write_checkpoint(folder, LARGE, Style(naming=model)))

    return opened


class Loading:
    """One loading, measured.

    Attributes:
      peak, left: bytes of host arrays at most and afterwards.
      shards: bytes placed on one device, all alike.
      largest: bytes of the checkpoint's largest tensor.
    """

    def __init__(self, checkpoint: Checkpoint, ranks: int):
        family = registry.resolve(checkpoint.config)
        model = family.read_config(checkpoint.config)
        sources = find_sources(checkpoint, family.tensor_specs(model))
        placement = Placement.of(ranks)
        engine = EngineConfig(tensor_parallel_size=ranks)
        tracemalloc.start()
        try:
            loaded = load_model(checkpoint, sources, model, engine, lambda *_: None, placement)
            self.left, self.peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        (self.shards,) = {bytes_on(device, loaded.params) for device in placement.devices}
        self.largest = max(info.nbytes for info in checkpoint.tensors.values())

    @property
    def bound(self) -> float:
        return 1.2 * self.shards + self.largest


def unaligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Host memory that no device can take over."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + 128, np.uint8)
    first = -raw.ctypes.data % 64 + 16
    return raw[first : first + size].view(dtype).reshape(shape)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("model", MODELS)
def test_a_device_that_copies_needs_little_more_than_one_site_on_the_host(
    checkpoint, monkeypatch: pytest.MonkeyPatch, model: str, ranks: int
):
    monkeypatch.setattr("onecat_jax.custom_calls.linear.stacks._empty", unaligned)
    load = Loading(checkpoint(model), ranks)
    print(
        f"\n{model}, {ranks} ranks, copied: {load.peak / 1e6:.1f} MB at most beside {load.shards / 1e6:.1f} MB a device"
    )
    assert load.left < 0.1 * load.shards + 2**20, "the host kept what was copied"
    assert load.peak <= load.bound


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("model", MODELS)
def test_a_device_that_takes_arrays_over_needs_nothing_beside_them(
    checkpoint, model: str, ranks: int
):
    load = Loading(checkpoint(model), ranks)
    others = (ranks - 1) * load.shards
    print(
        f"\n{model}, {ranks} ranks, taken over: {(load.peak - others) / 1e6:.1f} MB for {load.shards / 1e6:.1f} MB a device"
    )
    assert load.peak - others <= load.bound


def test_host_arrays_are_taken_over_by_cpu_devices(checkpoint):
    """What makes the law above one about arrays that lie on devices."""
    if jax.default_backend() != "cpu":
        pytest.skip("about CPU devices")
    load = Loading(checkpoint("dense"), 2)
    assert load.left > 0.95 * 2 * load.shards
