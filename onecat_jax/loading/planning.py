"""From engine arguments to a memory plan on the devices of an engine."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax

from onecat_jax.config import EngineConfig
from onecat_jax.custom_calls.dispatch import Policy, Target
from onecat_jax.loading.device_memory import DeviceMemory, device_memory
from onecat_jax.loading.draft_plan import NO_PLAN, DraftPlan
from onecat_jax.loading.formats import Source
from onecat_jax.loading.memory_plan import MemoryPlan, PlanRequest, fit, largest, requirements
from onecat_jax.loading.ranks import check_ranks
from onecat_jax.models.qwen3_5.config import ModelConfig


def plan_memory(
    engine: EngineConfig,
    config: ModelConfig,
    sources: Mapping[str, Source],
    devices: Sequence[jax.Device],
    draft: DraftPlan = NO_PLAN,
) -> MemoryPlan:
    """Plans a checkpoint on every device before a weight is read.

    Without a max_model_len the model's limit is taken, or the most that fits if that is less.

    Args:
      devices: those of the ranks, of which the fullest decides; fewer stand for others like them.
      draft: what speculative decoding adds.

    Raises:
      EngineError: the model doesn't divide over tensor_parallel_size devices.
      CapacityError: the model, or the max_model_len that was asked for, doesn't fit.
    """
    ranks = engine.tensor_parallel_size
    check_ranks(config, sources, ranks)
    free = [device_memory(device, engine.gpu_memory_utilization, ranks) for device in devices]
    memory = min(free, key=lambda found: found.available)
    request = replace(plan_request(engine, config, devices[0].platform), draft=draft)
    if engine.max_model_len is None:
        request = replace(request, max_model_len=_longest(request, config, sources, memory))
    return fit(requirements(config, sources, request), memory)


def plan_request(
    engine: EngineConfig, config: ModelConfig, platform: str, target: Target | None = None
) -> PlanRequest:
    """The arguments that decide memory, "auto" resolved.

    Args:
      platform: of the devices.
      target: what weights are packed for, if that isn't this process's default device.
    """
    compute = engine.compute_dtype(platform)
    return PlanRequest(
        max_model_len=engine.max_model_len or config.max_position_embeddings,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        block_size=engine.block_size,
        compute_dtype=compute,
        kv_dtype=compute if engine.kv_cache_dtype == "auto" else engine.kv_cache_dtype,
        ranks=engine.tensor_parallel_size,
        policy=Policy(engine.backend, engine.strict, target),
        mtp=engine.uses_mtp,
    )


def _longest(
    request: PlanRequest,
    config: ModelConfig,
    sources: Mapping[str, Source],
    memory: DeviceMemory,
) -> int:
    """The longest request that fits; the model's limit if nothing does, for the refusal's sake."""
    limit = config.max_position_embeddings
    return largest(requirements(config, sources, request), memory, "max_model_len", limit) or limit
