"""The memory plan. Oracles: bytes of the arrays that are really built, the published per-token and
per-sequence sizes of the 27B model, and a linear search for the bounds.

Not covered: the size of the largest temporary, which is a bound and no law.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from checkpoints import SMALL, TIED, Style, tensor_specs, write_checkpoint

from onecat_jax.config import EngineConfig
from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import LinearRoute
from onecat_jax.errors import CapacityError
from onecat_jax.loading import Checkpoint, load_tensors
from onecat_jax.loading.device_memory import DeviceMemory, device_memory
from onecat_jax.loading.formats import DenseSource, NVFP4Source, Source
from onecat_jax.loading.memory_plan import (
    HEADROOM,
    PlanRequest,
    Requirements,
    fit,
    largest,
    requirements,
)
from onecat_jax.loading.planning import plan_memory
from onecat_jax.loading.safetensors_file import SafetensorsFile
from onecat_jax.loading.sources import find_sources
from onecat_jax.models.qwen3_5 import build_params
from onecat_jax.models.qwen3_5.config import ModelConfig
from onecat_jax.sizes import gib
from onecat_jax.state import CacheState

REQUEST = PlanRequest(max_model_len=500, max_num_seqs=3, max_num_batched_tokens=64, block_size=16)
QWEN_27B = ModelConfig(
    vocab_size=248320,
    hidden_size=5120,
    intermediate_size=17408,
    layer_types=("linear_attention", "linear_attention", "linear_attention", "full_attention") * 16,
    num_attention_heads=24,
    num_key_value_heads=4,
    head_dim=256,
    rotary_dim=64,
    rope_theta=1e7,
    linear_num_key_heads=16,
    linear_num_value_heads=48,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    linear_conv_kernel_dim=4,
    rms_norm_eps=1e-6,
    tie_word_embeddings=False,
    max_position_embeddings=262144,
    mtp_num_hidden_layers=1,
    eos_token_id=(248044,),
)


def memory(available: int) -> DeviceMemory:
    return DeviceMemory(available, "test:0", "as the test says")


def dense_sources(config: ModelConfig) -> Mapping[str, Source]:
    return {name: DenseSource(spec, name) for name, spec in tensor_specs(config).items()}


def quasar_sources(config: ModelConfig) -> Mapping[str, Source]:
    """Every text linear NVFP4 but the head; embedding, head and MTP dense."""
    return {
        name: NVFP4Source(source.spec, name)
        if source.spec.kind == "linear" and not name.startswith(("lm_head", "mtp."))
        else source
        for name, source in dense_sources(config).items()
    }


def needs_of(config: ModelConfig = SMALL, request: PlanRequest = REQUEST) -> Requirements:
    return requirements(config, dense_sources(config), request)


@pytest.mark.parametrize("naming", ["dense", "modelopt"])
@pytest.mark.parametrize("config", [SMALL, TIED], ids=["untied", "tied"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_planned_weight_bytes_are_the_bytes_of_the_arrays(
    tmp_path: Path, naming: str, config: ModelConfig, dtype: str
):
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path, config, Style(naming=naming)))
    specs = tensor_specs(config)
    plain = Policy(backend="plain")
    tensors = load_tensors(checkpoint, specs)
    params = build_params(
        tensors, config, route=LinearRoute(plain), dtype=jnp.dtype(dtype), loops="superblocks"
    )
    arrays = {id(leaf): leaf.nbytes for leaf in jax.tree.leaves(params)}
    request = replace(REQUEST, compute_dtype=dtype, kv_dtype=dtype, policy=plain)
    planned = requirements(config, find_sources(checkpoint, specs), request)
    assert sum(planned.weights.values()) == sum(arrays.values())


def test_planned_cache_bytes_are_the_bytes_of_the_state():
    plan = fit(needs_of(), memory(2**40))
    state = CacheState.zeros(plan.cache, kv_dtype=jnp.float32, window_dtype=jnp.float32)
    kv = sum(leaf.nbytes for leaf in jax.tree.leaves(state.kv))
    assert plan.groups["KV cache"] == kv
    assert plan.groups["GDN state"] == state.gdn.state.nbytes
    assert plan.groups["convolution window"] == state.gdn.window.nbytes


def test_sizes_of_the_27b_model_are_the_published_ones():
    """64 KiB of keys and values per token; 151 MB of state and 2.95 MB of window per sequence; 55.56 GB of BF16 weights
    with MTP head and vision tower (0.46 B); 4.5 bits per quantised parameter."""
    request = replace(
        REQUEST, compute_dtype="float16", kv_dtype="float16", mtp=True, max_num_seqs=1
    )
    needs = needs_of(QWEN_27B, request)
    assert needs.page_bytes == 16 * 65536 * 17 // 16, "the MTP head's layer comes on top of 16"
    assert needs.fixed["GDN state"] == 2 * 48 * 48 * 128 * 128 * 4
    assert needs.fixed["convolution window"] == 2 * 48 * 61440
    dense = sum(needs.weights.values())
    assert dense == pytest.approx(55.56e9 - 2 * 0.46e9, rel=0.005)
    packed = sum(requirements(QWEN_27B, quasar_sources(QWEN_27B), request).weights.values())
    linears = 48 * 115.9e6 + 16 * 104.9e6 + 64 * 267.4e6
    assert dense - packed == pytest.approx(linears * (2 - 9 / 16), rel=0.002)


@pytest.mark.parametrize("kv_dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_a_byte_per_element_halves_the_cache(kv_dtype: str):
    half = needs_of(QWEN_27B, replace(REQUEST, kv_dtype="float16"))
    byte = needs_of(QWEN_27B, replace(REQUEST, kv_dtype=kv_dtype))
    assert 2 * byte.page_bytes == half.page_bytes


def test_the_least_fits_and_one_byte_less_does_not():
    needs = needs_of()
    plan = fit(needs, memory(needs.least))
    assert plan.kv_tokens >= REQUEST.max_model_len
    assert plan.total == needs.least
    with pytest.raises(CapacityError):
        fit(needs, memory(needs.least - 1))


def test_more_memory_gives_pages_up_to_what_all_requests_fill():
    needs = needs_of()
    pages = [
        fit(needs, memory(needs.least + extra * needs.page_bytes)).pages for extra in range(100)
    ]
    full = 3 * 32 + 1
    assert pages == [min(33 + extra, full) for extra in range(100)]


@pytest.mark.parametrize("field", ["max_model_len", "max_num_seqs"])
def test_bounds_are_those_of_a_linear_search(field: str):
    needs = needs_of()
    for extra in (-(10**6), -(10**5), 0, 10**5, 10**6):
        available = needs.least + extra
        fitting = [
            v
            for v in range(1, 700)
            if needs.with_request(field, v).least <= available  # type: ignore[arg-type]
        ]
        found = largest(needs, memory(available), field, 699)  # type: ignore[arg-type]
        assert found == max(fitting, default=0)


def test_a_refusal_names_every_group_and_what_would_fit():
    needs = needs_of(QWEN_27B, replace(REQUEST, max_model_len=100_000, max_num_seqs=64))
    available = needs.with_request("max_num_seqs", 10).least
    with pytest.raises(CapacityError) as caught:
        fit(needs, memory(available))
    message = str(caught.value)
    assert "doesn't fit test:0" in message.splitlines()[0]
    assert f"{gib(needs.least)} needed with max_model_len 100000 and max_num_seqs 64" in message
    assert f"{gib(available)} available" in message
    assert message.splitlines()[0].endswith("or max_num_seqs 10")
    length = int(message.splitlines()[0].split("max_model_len ")[-1].split()[0])
    assert needs.with_request("max_model_len", length).least <= available
    assert needs.with_request("max_model_len", length + 1).least > available
    groups = ("MLP", "GDN linears", "attention linears", "embedding and head", "norms and small")
    for group in (*groups, "GDN state", "largest temporary", "headroom", "KV cache", "total"):
        assert group in message


def test_a_refusal_says_when_nothing_fits():
    with pytest.raises(CapacityError, match="a device with more memory or a smaller checkpoint"):
        fit(needs_of(), memory(HEADROOM))


def test_a_refusal_says_when_both_must_shrink():
    needs = needs_of(QWEN_27B, replace(REQUEST, max_model_len=200_000, max_num_seqs=64))
    small = needs.with_request("max_num_seqs", 1).with_request("max_model_len", 16)
    with pytest.raises(CapacityError, match="a smaller max_model_len together with"):
        fit(needs, memory(small.least))


def plan(folder: Path, utilization: float, **arguments: int):
    checkpoint = Checkpoint.open(folder)
    sources = find_sources(checkpoint, tensor_specs(SMALL))
    engine = EngineConfig(gpu_memory_utilization=utilization, **arguments)
    return plan_memory(engine, SMALL, sources, jax.local_devices()[:1])


def test_a_model_that_does_not_fit_is_refused_before_a_weight_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_checkpoint(tmp_path)
    monkeypatch.setattr(SafetensorsFile, "array", lambda *_: pytest.fail("a weight was read"))
    with pytest.raises(CapacityError, match="doesn't fit cpu:0"):
        plan(tmp_path, 1e-9)


def test_without_a_length_the_longest_that_fits_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_checkpoint(tmp_path)
    assert plan(tmp_path, 0.5).request.max_model_len == SMALL.max_position_embeddings
    sources = find_sources(Checkpoint.open(tmp_path), tensor_specs(SMALL))
    request = replace(REQUEST, max_num_seqs=8, max_num_batched_tokens=512, max_model_len=100)
    short = requirements(SMALL, sources, request).least
    monkeypatch.setattr("onecat_jax.loading.device_memory._host_available", lambda: short)
    assert plan(tmp_path, 1.0).request.max_model_len == 112
    with pytest.raises(CapacityError, match="what would fit: max_model_len 112"):
        plan(tmp_path, 1.0, max_model_len=113)


class FakeGPU:
    """What `device_memory` asks of a GPU."""

    platform, id = "gpu", 1

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_limit": 1000, "bytes_in_use": 100}


def test_a_gpu_plan_stays_inside_the_pool_that_jax_was_given():
    found = device_memory(FakeGPU(), 0.5)  # type: ignore[arg-type]
    assert (found.available, found.device) == (400, "gpu:1")
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" in found.source


def test_a_container_limit_bounds_host_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    monkeypatch.setattr("onecat_jax.loading.device_memory._CGROUP", tmp_path)
    assert device_memory(jax.local_devices()[0], 1.0).available == 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert device_memory(jax.local_devices()[0], 1.0).available > 2000
