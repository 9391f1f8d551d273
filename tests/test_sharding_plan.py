"""The memory plan of several ranks. Oracle: bytes of the arrays that are really placed on each device.

Not covered: the size of the largest temporary, which is a bound and no law.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from checkpoints import SMALL, Style, tensor_specs, write_checkpoint
from sharding_checkpoints import LARGE, bytes_on

from onecat_jax.config import EngineConfig
from onecat_jax.device_state import empty_state
from onecat_jax.errors import CapacityError
from onecat_jax.loading import Checkpoint
from onecat_jax.loading.device_memory import DeviceMemory, device_memory
from onecat_jax.loading.memory_plan import PlanRequest, fit, requirements
from onecat_jax.loading.planning import plan_memory
from onecat_jax.loading.sources import find_sources
from onecat_jax.model_loader import load_model
from onecat_jax.models.qwen3_5 import ModelConfig, Params
from onecat_jax.sharding import Placement
from onecat_jax.sizes import gib

REQUEST = PlanRequest(max_model_len=500, max_num_seqs=3, max_num_batched_tokens=64, block_size=16)
WIDE_TIED = replace(LARGE, tie_word_embeddings=True, num_key_value_heads=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    @cache
    def written(config: ModelConfig, naming: str) -> Path:
        return write_checkpoint(tmp_path_factory.mktemp("model"), config, Style(naming=naming))

    return written


def groups(params: Params, device: jax.Device) -> dict[str, int]:
    """Placed bytes by the plan's groups."""
    gdn = [s.gdn for s in params.segments if s.gdn]
    attention = [s.attention for s in params.segments if s.attention]
    mlp = [s.mlp for s in params.segments]
    found = {
        "embedding and head": bytes_on(device, params.embed, params.head),
        "GDN linears": bytes_on(device, [(s.in_proj, s.gate_proj, s.out_proj) for s in gdn]),
        "attention linears": bytes_on(device, [(s.qkv_proj, s.o_proj) for s in attention]),
        "MLP": bytes_on(device, [(s.gate_up_proj, s.down_proj) for s in mlp]),
    }
    return found | {"norms and small": bytes_on(device, params) - sum(found.values())}


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("naming", ["dense", "modelopt"])
@pytest.mark.parametrize("config", [LARGE, WIDE_TIED], ids=["repeated heads", "tied"])
def test_planned_bytes_are_those_on_every_device_group_by_group(folder, config, naming, ranks):
    checkpoint = Checkpoint.open(folder(config, naming))
    sources = find_sources(checkpoint, tensor_specs(config))
    placement = Placement.of(ranks)
    engine = EngineConfig(tensor_parallel_size=ranks, max_model_len=500, max_num_seqs=3)
    plan = plan_memory(engine, config, sources, placement.devices)
    loaded = load_model(checkpoint, sources, config, engine, lambda *_: None, placement)
    state = empty_state(
        placement, plan.cache, kv_dtype=plan.request.kv_storage, window_dtype=jnp.dtype("float32")
    )
    for device in placement.devices:
        placed = groups(loaded.params, device) | {
            "GDN state": bytes_on(device, state.gdn.state),
            "convolution window": bytes_on(device, state.gdn.window),
            "token history": bytes_on(device, state.history),
            "KV cache": bytes_on(device, state.kv),
        }
        assert placed == {name: plan.groups[name] for name in placed}
    assert set(plan.groups) - set(placed) == {"largest temporary", "headroom"}
    assert plan.ranks == ranks


def test_heads_of_one_rank_decide_the_pages(folder):
    """Two key/value heads: half of each page on two ranks, and the same half, held twice, on four."""
    sources = find_sources(Checkpoint.open(folder(LARGE, "dense")), tensor_specs(LARGE))
    pages = [
        requirements(LARGE, sources, replace(REQUEST, ranks=ranks)).page_bytes
        for ranks in (1, 2, 4)
    ]
    assert pages == [pages[0], pages[0] // 2, pages[0] // 2]


def test_cpu_devices_share_the_memory_of_their_host(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("onecat_jax.loading.device_memory._host_available", lambda: 1000)
    found = device_memory(jax.devices()[0], 0.8, ranks=4)
    assert found.available == 200
    assert found.source.endswith("of free host memory, shared by 4 devices")


class FakeGPU:
    """What the plan asks of a GPU, of which some bytes are taken."""

    platform = "gpu"

    def __init__(self, number: int, taken: int):
        self.id, self.taken = number, taken

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_limit": 2**30, "bytes_in_use": self.taken}


def test_the_fullest_device_decides(folder):
    sources = find_sources(Checkpoint.open(folder(LARGE, "dense")), tensor_specs(LARGE))
    devices = [FakeGPU(0, 100), FakeGPU(1, 900), FakeGPU(2, 500), FakeGPU(3, 0)]
    engine = EngineConfig(tensor_parallel_size=4, gpu_memory_utilization=1.0, max_model_len=64)
    plan = plan_memory(engine, LARGE, sources, devices)  # type: ignore[arg-type]
    assert (plan.memory.device, plan.memory.available) == ("gpu:1", 2**30 - 900)


def test_a_refusal_says_that_its_numbers_are_those_of_each_device(tmp_path: Path):
    sources = find_sources(Checkpoint.open(write_checkpoint(tmp_path)), tensor_specs(SMALL))
    needs = requirements(SMALL, sources, replace(REQUEST, ranks=2))
    memory = DeviceMemory(needs.least - 1, "test:0", "as the test says")
    with pytest.raises(CapacityError) as caught:
        fit(needs, memory)
    head, first, *_ = str(caught.value).splitlines()
    assert head.startswith(
        f"the model doesn't fit 2 devices like test:0: {gib(needs.least)} needed on each device with max_model_len 500"
    )
    assert first == "  per device, 2 ranks"


def test_a_plan_of_one_device_says_nothing_of_ranks(tmp_path: Path):
    sources = find_sources(Checkpoint.open(write_checkpoint(tmp_path)), tensor_specs(SMALL))
    memory = DeviceMemory(2**40, "test:0", "as the test says")
    table = fit(requirements(SMALL, sources, REQUEST), memory).table()
    assert "per device" not in table
    split = fit(requirements(SMALL, sources, replace(REQUEST, ranks=2)), memory).table()
    assert split.splitlines()[0] == "  per device, 2 ranks"
