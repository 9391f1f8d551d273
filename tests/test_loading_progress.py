"""Loading a model: what its progress says, and what is left of it when it fails. Oracle: sizes of the stored tensors."""

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import SMALL, TIED, Style, tensor_specs, write_checkpoint

from onecat_jax.config import EngineConfig
from onecat_jax.errors import CheckpointError
from onecat_jax.loading import Checkpoint
from onecat_jax.loading.read_ahead import THREAD
from onecat_jax.loading.sources import find_sources
from onecat_jax.model_loader import load_model
from onecat_jax.models.qwen3_5.config import ModelConfig
from onecat_jax.sharding import Placement

Calls = list[tuple[int, int]]


def load(folder: Path, config: ModelConfig, ranks: int = 1, **arguments: Any) -> Calls:
    """(bytes done, bytes in all) of every call."""
    checkpoint = Checkpoint.open(folder)
    sources = find_sources(checkpoint, tensor_specs(config))
    calls: Calls = []
    engine = EngineConfig(tensor_parallel_size=ranks, **arguments)
    load_model(
        checkpoint, sources, config, engine, lambda *call: calls.append(call), Placement.of(ranks)
    )
    return calls


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("naming", ["dense", "modelopt", "compressed-tensors"])
@pytest.mark.parametrize("config", [SMALL, TIED], ids=["untied", "tied"])
def test_progress_counts_the_stored_bytes_of_what_is_loaded(
    tmp_path: Path, config: ModelConfig, naming: str, ranks: int
):
    """Without the MTP head and scales of activations, which aren't; the last call says that all are done."""
    calls = load(write_checkpoint(tmp_path, config, Style(naming=naming)), config, ranks)
    stored = Checkpoint.open(tmp_path).tensors
    unused = [
        n
        for n in stored
        if n.startswith("mtp.") or n.endswith(("input_scale", "input_global_scale"))
    ]
    total = sum(info.nbytes for name, info in stored.items() if name not in unused)
    done = [done for done, _ in calls]
    assert {total for _, total in calls} == {total}
    assert done == sorted(done)
    assert done[-1] == total
    assert len(calls) > 20 * ranks


def test_an_mtp_head_that_drafts_is_counted(tmp_path: Path):
    speculation = {"method": "mtp", "num_speculative_tokens": 1}
    calls = load(write_checkpoint(tmp_path, SMALL), SMALL, speculative_config=speculation)
    total = sum(info.nbytes for info in Checkpoint.open(tmp_path).tensors.values())
    assert calls[-1] == (total, total)


def test_layers_are_counted_one_by_one(tmp_path: Path):
    """No step is larger than one layer, though all layers are packed into one stack."""
    config = replace(SMALL, layer_types=("full_attention",) * 5)
    calls = load(write_checkpoint(tmp_path, config), config)
    done = np.array([0, *(done for done, _ in calls)])
    tensors = Checkpoint.open(tmp_path).tensors
    layer = sum(info.nbytes for name, info in tensors.items() if "layers.1." in name)
    assert np.diff(done).max() <= layer


@pytest.mark.parametrize("part", ["layers.0.mlp.gate_proj", "embed_tokens"])
def test_the_first_failure_ends_loading_with_its_own_error_and_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
):
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path, SMALL))
    sources = find_sources(checkpoint, tensor_specs(SMALL))
    read = Checkpoint.array

    def array(self: Checkpoint, name: str) -> np.ndarray:
        if part in name:
            raise CheckpointError(f"{name} can't be read")
        return read(self, name)

    monkeypatch.setattr(Checkpoint, "array", array)
    before = set(threading.enumerate())
    with pytest.raises(CheckpointError, match=f"{part}.* can't be read"):
        load_model(checkpoint, sources, SMALL, EngineConfig(), lambda *_: None, Placement.of(1))
    started = set(threading.enumerate()) - before
    for thread in started:
        assert thread.name == THREAD  # which ends by itself
        thread.join(10)
        assert not thread.is_alive()


def test_a_failure_stops_what_has_not_been_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With one worker, on a disk so slow that the failure is noticed while the next site is read."""
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path, SMALL))
    sources = find_sources(checkpoint, tensor_specs(SMALL))
    read: list[str] = []

    def array(self: Checkpoint, name: str) -> np.ndarray:
        if read:
            time.sleep(0.5)
        read.append(name)
        raise CheckpointError(f"{name} can't be read")

    monkeypatch.setattr(Checkpoint, "array", array)
    monkeypatch.setattr("onecat_jax.models.sites._workers", lambda: 1)
    with pytest.raises(CheckpointError, match="can't be read"):
        load_model(checkpoint, sources, SMALL, EngineConfig(), lambda *_: None, Placement.of(1))
    assert len(read) < 10
