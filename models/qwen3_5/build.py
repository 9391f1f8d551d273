"""Checkpoint tensors -> device parameters."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax

from onecat_jax.custom_calls.linear import LinearRoute
from onecat_jax.errors import CheckpointError
from onecat_jax.models.qwen3_5.builder import Builder, CacheScales
from onecat_jax.models.qwen3_5.config import ModelConfig
from onecat_jax.models.qwen3_5.mtp_source import mtp_config, mtp_source
from onecat_jax.models.qwen3_5.params import tensor_specs
from onecat_jax.models.qwen3_5.segments import plan_segments, signatures
from onecat_jax.models.qwen3_5.weights import Loops, MTPParams, Params
from onecat_jax.models.sites import Later, Sites, build_sites, check_alike, source_of
from onecat_jax.models.tensors import HostTensor, TensorSource
from onecat_jax.sharding import Placement

_FUSED_SITES = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"),
    ("mlp.gate_proj", "mlp.up_proj"),
)


def _check_formats(source: TensorSource, config: ModelConfig) -> None:
    """Refuses formats that a fused site can't hold, before anything is placed.

    Raises:
      CheckpointError: siblings of one site stored in different formats.
    """
    for layer in range(config.num_hidden_layers):
        for site in _FUSED_SITES:
            check_alike(source, [f"layers.{layer}.{name}.weight" for name in site])


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
    tensors = source_of(source, tensor_specs(config), placement)
    _check_formats(tensors, config)
    plans = plan_segments(signatures(tensors, config))

    def start(sites: Sites) -> Later[Params]:
        builder = Builder(sites, config, cache_scales)
        params = builder.params(plans, loops)
        head = _mtp(builder) if mtp else None
        return lambda: replace(params(), mtp=head() if head else None)

    return build_sites(
        start, tensors, route=route, dtype=dtype, placement=placement, progress=progress
    )


def _mtp(builder: Builder) -> Later[MTPParams]:
    config = mtp_config(builder.config)
    source = mtp_source(builder.sites.source, config)
    try:
        _check_formats(source, config)
    except CheckpointError as error:
        raise CheckpointError(f"MTP head (tensors under mtp.): {error}") from error
    return builder.mtp(source, config)
