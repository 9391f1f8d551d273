"""From a checkpoint to device weights."""

from collections.abc import Callable
from dataclasses import dataclass

import jax

from onecat_jax.config import EngineConfig
from onecat_jax.custom_calls.dispatch import Policy, Target
from onecat_jax.custom_calls.linear import LinearRoute
from onecat_jax.loading import Checkpoint, load_tensors
from onecat_jax.models.qwen3_5 import (
    ForwardOptions,
    ModelConfig,
    Params,
    build_params,
    tensor_specs,
)
from onecat_jax.models.qwen3_5.weights import Loops

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


def load_model(
    checkpoint: Checkpoint, model: ModelConfig, config: EngineConfig, progress: LoadProgress
) -> LoadedModel:
    """Validates every tensor, then packs and places them site by site.

    Raises:
      CheckpointError: a tensor is missing, unknown, misshapen or of an unknown format.
    """
    policy = Policy(backend=config.backend, strict=config.strict)
    target = policy.resolved_target()
    dtype, loops = config.compute_dtype(target.platform), choose_loops(config, target)
    tensors = load_tensors(checkpoint, tensor_specs(model))
    total = sum(info.nbytes for info in checkpoint.tensors.values())
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        progress(min(done, total), total)

    params = build_params(
        tensors,
        model,
        route=LinearRoute(policy, separate=loops == "none"),
        dtype=dtype,
        loops=loops,
        progress=advance,
    )
    progress(total, total)
    return LoadedModel(jax.block_until_ready(params), ForwardOptions(model, dtype, policy))
