"""What fits a card that isn't here: the memory a V100 would offer, and the plans on so many of them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from onecat_jax.config import EngineConfig
from onecat_jax.custom_calls.dispatch import Target
from onecat_jax.errors import EngineError
from onecat_jax.loading.device_memory import DeviceMemory
from onecat_jax.loading.formats import Source
from onecat_jax.loading.memory_plan import largest, requirements
from onecat_jax.loading.planning import plan_request
from onecat_jax.loading.ranks import check_ranks
from onecat_jax.models.qwen3_5.config import ModelConfig

V100_MIB = {16: 16160, 32: 32510}
"""Nominal GB -> MiB that the driver reports."""
_V100 = Target("gpu", 70)
_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_DEFAULT_FRACTION = 0.75  # JAX's own


@dataclass(frozen=True)
class CardBound:
    """What fits on V100s of one size, in float16.

    Attributes:
      gib: nominal size of each.
      ranks: how many.
      max_model_len_one_request: tokens of a single request; 0 if the model doesn't fit.
      max_model_len_each: tokens of each of max_num_seqs requests at once; 0 if they don't fit.
      reason: why the model can't be split over so many, "" if it can.
    """

    gib: int
    ranks: int
    max_num_seqs: int
    max_model_len_one_request: int = 0
    max_model_len_each: int = 0
    reason: str = ""


def pool_fraction() -> float:
    """The share of a GPU that JAX takes for its pool: XLA_PYTHON_CLIENT_MEM_FRACTION, or JAX's default.

    Raises:
      EngineError: the variable holds no fraction.
    """
    text = os.environ.get(_FRACTION)
    if text is None:
        return _DEFAULT_FRACTION
    try:
        fraction = float(text)
    except ValueError:
        fraction = 0.0
    if not 0 < fraction <= 1:
        raise EngineError(f"{_FRACTION} is {text!r}; a number above 0 and up to 1 is needed.")
    return fraction


def v100_memory(gib: int, utilization: float) -> DeviceMemory:
    """Of an empty card.

    Raises:
      EngineError: see `pool_fraction`.
    """
    pool = int(V100_MIB[gib] * 2**20 * pool_fraction())
    return DeviceMemory(int(pool * utilization), f"V100 {gib} GB", "nominal size")


def v100_bound(
    config: ModelConfig, sources: Mapping[str, Source], engine: EngineConfig, gib: int, ranks: int
) -> CardBound:
    """Context bounds on so many cards, with the engine's other arguments.

    Raises:
      EngineError: see `pool_fraction`.
    """
    try:
        check_ranks(config, sources, ranks)
    except EngineError as refusal:
        return CardBound(gib, ranks, engine.max_num_seqs, reason=str(refusal))
    limit = config.max_position_embeddings
    wanted = replace(
        engine, dtype="float16", max_model_len=limit, tensor_parallel_size=ranks, strict=False
    )
    request = plan_request(wanted, config, "gpu", _V100)
    needs, memory = (
        requirements(config, sources, request),
        v100_memory(gib, engine.gpu_memory_utilization),
    )
    single = largest(needs.with_request("max_num_seqs", 1), memory, "max_model_len", limit)
    pages = max(needs.pages_within(memory.available) - 1, 0)
    each = min(pages // request.max_num_seqs * request.block_size, limit)
    return CardBound(gib, ranks, request.max_num_seqs, single, each)
