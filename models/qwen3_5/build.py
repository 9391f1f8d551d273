"""Checkpoint tensors -> device parameters."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Lock
from typing import Any

import jax

from onecat_jax.custom_calls.linear import (
    DenseTensor,
    FP8Tensor,
    INT4Tensor,
    LinearRoute,
    NVFP4Tensor,
)
from onecat_jax.errors import CheckpointError
from onecat_jax.models.qwen3_5.builder import Builder, CacheScales, Later
from onecat_jax.models.qwen3_5.config import ModelConfig
from onecat_jax.models.qwen3_5.mtp_source import mtp_config, mtp_source
from onecat_jax.models.qwen3_5.params import tensor_specs
from onecat_jax.models.qwen3_5.segments import plan_segments, signatures
from onecat_jax.models.qwen3_5.weights import Loops, MTPParams, Params
from onecat_jax.models.tensors import HostTensor, HostTensors, TensorSource
from onecat_jax.sharding import Placement

_FUSED_SITES = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"),
    ("mlp.gate_proj", "mlp.up_proj"),
)
_FORMATS = {DenseTensor: "dense", NVFP4Tensor: "NVFP4", FP8Tensor: "FP8", INT4Tensor: "INT4"}
_MAX_WORKERS = 4


def _check_formats(source: TensorSource, config: ModelConfig) -> None:
    """Refuses formats that a fused site can't hold, before anything is placed.

    Raises:
      CheckpointError: siblings of one site stored in different formats.
    """
    for layer in range(config.num_hidden_layers):
        for site in _FUSED_SITES:
            names = [f"layers.{layer}.{name}.weight" for name in site]
            kinds = {n: kind for n in names if (kind := source.kind(n)) is not None}
            if len(set(kinds.values())) > 1:
                shown = ", ".join(
                    f"{source.describe(n)} is {_FORMATS[kind]}" for n, kind in kinds.items()
                )
                raise CheckpointError(
                    f"{shown}; tensors that are multiplied together must be stored in one format: "
                    "use an export that quantises all of them or none."
                )


def build_params(
    source: TensorSource | Mapping[str, HostTensor],
    config: ModelConfig,
    *,
    route: LinearRoute,
    dtype: Any,
    loops: Loops,
    placement: Placement | None = None,
    progress: Callable[[int], None] = lambda _: None,
    cache_scales: CacheScales | None = None,
    mtp: bool = False,
) -> Params:
    """Places a checkpoint, a few sites at once: every rank's piece of a weight is fused and packed on its own.

    Every array that is split holds the pieces of all ranks side by side on axis 0, in rank order; norms of the residual stream
    and of heads are the same on all ranks (`specs.param_specs`).

    Args:
      source: the tensors, cut for as many ranks as the placement has; or whole host tensors by canonical name.
      config: the whole model.
      route: which linear route the weights are packed for.
      dtype: compute dtype.
      loops: which layer loops run on the device.
      placement: the devices; the first local one if it isn't given.
      progress: called with the checkpoint bytes of every layer of a site when they are packed, from one thread at a time.
      cache_scales: of keys and values as they lie in a float8 cache; None for a cache that holds them as they are.

      mtp: whether the MTP head is placed too.

    Raises:
      CheckpointError: formats that a fused site can't hold, when nothing has been placed yet; values that no format has; or
        there is no MTP head.
      EngineError: a tensor can't be split over that many ranks.
    """
    placement = placement or Placement((jax.local_devices()[0],))
    if isinstance(source, Mapping):
        source = HostTensors(source, tensor_specs(config), placement.size)
    if source.ranks != placement.size:
        raise ValueError(f"tensors cut for {source.ranks} ranks, {placement.size} devices")
    _check_formats(source, config)
    plans = plan_segments(signatures(source, config))
    with ThreadPoolExecutor(_workers()) as workers:
        builder = Builder(
            source, config, route, dtype, placement, _one_by_one(progress), cache_scales, workers
        )
        try:
            params = builder.params(plans, loops)
            head = _mtp(builder) if mtp else None
            builder.finish()
            return replace(params(), mtp=head() if head else None)
        except BaseException:
            workers.shutdown(wait=False, cancel_futures=True)
            raise


def _mtp(builder: Builder) -> Later[MTPParams]:
    config = mtp_config(builder.config)
    source = mtp_source(builder.source, config)
    try:
        _check_formats(source, config)
    except CheckpointError as error:
        raise CheckpointError(f"MTP head (tensors under mtp.): {error}") from error
    return builder.mtp(source, config)


def _workers() -> int:
    """Threads that read and pack at once: more than a few would only hold more memory."""
    return min(_MAX_WORKERS, os.cpu_count() or 1)


def _one_by_one(progress: Callable[[int], None]) -> Callable[[int], None]:
    """Calls from several threads, in turn."""
    lock = Lock()

    def advance(nbytes: int) -> None:
        with lock:
            progress(nbytes)

    return advance
