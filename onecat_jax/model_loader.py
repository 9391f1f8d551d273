"""From a checkpoint to device weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax

from onecat_jax.config import EngineConfig
from onecat_jax.custom_calls.dispatch import Policy, Target
from onecat_jax.custom_calls.linear import LinearRoute
from onecat_jax.loading import Checkpoint
from onecat_jax.loading.cache_scales import find_cache_scales
from onecat_jax.loading.formats import Source
from onecat_jax.loading.memory_plan import KV_STORAGE
from onecat_jax.loading.tensor_source import tensor_source
from onecat_jax.models.qwen3_5 import (
    ForwardOptions,
    ModelConfig,
    Params,
    build_params,
)
from onecat_jax.models.qwen3_5.builder import CacheScales
from onecat_jax.models.qwen3_5.weights import Loops
from onecat_jax.sharding import Placement

LoadProgress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True)
class LoadedModel:
    """Device weights and the static choices they were built for."""

    params: Params
    options: ForwardOptions


def choose_loops(config: EngineConfig, target: Target) -> Loops:
    """Layer loops that suit the device; see `Loops`."""
    if target.platform != "cpu":
        return "superblocks"
    return "none" if config.backend == "plain" else "layers"


def _cache_scales(checkpoint: Checkpoint, config: EngineConfig) -> CacheScales | None:
    """Those that the checkpoint stores, where the cache is of the kind that they were made for."""
    if config.kv_cache_dtype not in KV_STORAGE:
        return None
    found = find_cache_scales(checkpoint)
    return None if found.trivial else found.of


def load_model(
    checkpoint: Checkpoint,
    sources: Mapping[str, Source],
    model: ModelConfig,
    config: EngineConfig,
    progress: LoadProgress,
    placement: Placement,
) -> LoadedModel:
    """Packs and places all weights, site by site and rank by rank.

    Args:
      checkpoint, sources: the tensors, found and validated by `find_sources`.
      model: the configuration that they belong to.
      config: engine arguments.
      progress: called with bytes done and bytes in all, of what is loaded; the last call says that all are done.
      placement: the devices, one per tensor-parallel rank.

    Raises:
      CheckpointError: a scale is bad, a code is NaN, or an array of a converted checkpoint can't be read.
      EngineError: a tensor can't be split over that many ranks.
    """
    policy = Policy(backend=config.backend, strict=config.strict)
    target = policy.resolved_target()
    dtype, loops = config.compute_dtype(target.platform), choose_loops(config, target)
    tensors = tensor_source(checkpoint, sources, placement.size)
    loaded = (n for n in tensors.names if config.uses_mtp or not n.startswith("mtp."))
    total = sum(map(tensors.nbytes, loaded))
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(done, total)

    params = build_params(
        tensors,
        model,
        route=LinearRoute(policy, separate=loops == "none"),
        dtype=dtype,
        loops=loops,
        placement=placement,
        progress=advance,
        cache_scales=_cache_scales(checkpoint, config),
        mtp=config.uses_mtp,
    )
    options = ForwardOptions(model, dtype, policy, placement.shards)
    return LoadedModel(jax.block_until_ready(params), options)
