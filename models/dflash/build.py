"""Checkpoint tensors -> device parameters of a draft."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax import Array

from onecat_jax.custom_calls.linear import Linear, LinearRoute
from onecat_jax.errors import CheckpointError
from onecat_jax.models.dflash.config import DFlashConfig
from onecat_jax.models.dflash.params import tensor_specs
from onecat_jax.models.dflash.weights import (
    Context,
    ConvStack,
    DFlashParams,
    LayerStack,
    Selector,
)
from onecat_jax.models.sites import SiteBuilder
from onecat_jax.models.tensors import HostTensor, HostTensors, TensorSource
from onecat_jax.sharding import Placement

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


@dataclass(frozen=True)
class _DraftBuilder:
    sites: SiteBuilder
    config: DFlashConfig

    @property
    def layers(self) -> range:
        return range(self.config.num_hidden_layers)

    def _rows(self, *modules: str, leaf: str = "weight") -> list[list[str]]:
        return [[f"layers.{i}.{module}.{leaf}" for module in modules] for i in self.layers]

    def _linear(self, *modules: str) -> Linear:
        return self.sites.matrices(self._rows(*modules))

    def _vectors(self, module: str, leaf: str = "weight") -> Array:
        return self.sites.replicated([name for (name,) in self._rows(module, leaf=leaf)])

    def _conv(self, name: str) -> ConvStack | None:
        if not self.config.selects:
            return None
        return ConvStack(
            base_kernel=self._vectors(name, "base_kernel"),
            kernel_projection=self._linear(f"{name}.kernel_projection"),
        )

    def stack(self) -> LayerStack:
        bias = self.config.attention_bias
        return LayerStack(
            input_norm=self._vectors("input_layernorm"),
            qkv_proj=self._linear(*_QKV),
            qkv_bias=self.sites.split(self._rows(*_QKV, leaf="bias")) if bias else None,
            q_norm=self._vectors("self_attn.q_norm"),
            k_norm=self._vectors("self_attn.k_norm"),
            o_proj=self._linear("self_attn.o_proj"),
            o_bias=self._vectors("self_attn.o_proj", "bias") if bias else None,
            post_norm=self._vectors("post_attention_layernorm"),
            gate_up_proj=self._linear("mlp.gate_proj", "mlp.up_proj"),
            down_proj=self._linear("mlp.down_proj"),
            attention_conv=self._conv("attention_conv"),
            mlp_conv=self._conv("mlp_conv"),
        )

    def context(self) -> Context:
        bias = self.config.attention_bias
        return Context(
            fc=self.sites.matrices([["fc.weight"]]),
            hidden_norm=self._vector("hidden_norm.weight"),
            kv_proj=self.sites.matrices([self._keys_and_values("weight")]),
            kv_bias=self.sites.split([self._keys_and_values("bias")]) if bias else None,
        )

    def _keys_and_values(self, leaf: str) -> list[str]:
        """Of all layers: one product for the context, which all layers read."""
        return [name for row in self._rows(*_QKV[1:], leaf=leaf) for name in row]

    def _vector(self, name: str) -> Array:
        return self.sites.replicated([name], lambda rows: rows[0])

    def selector(self) -> Selector | None:
        if not self.config.selects:
            return None
        name = "candidate_selector"
        return Selector(
            predecessor=self.sites.dense(f"{name}.predecessor_codebook"),
            successor=self.sites.dense(f"{name}.successor_codebook"),
            hidden_projection=self.sites.matrices([[f"{name}.hidden_projection.weight"]]),
        )

    def mask_embedding(self) -> Array | None:
        return self._vector("mask_embedding") if self.sites.has("mask_embedding") else None

    def head(self) -> Linear | None:
        return (
            self.sites.matrices([["lm_head.weight"]]) if self.sites.has("lm_head.weight") else None
        )

    def target_ids(self) -> Array | None:
        """d2t holds what must be added to a draft id."""
        if not self.config.own_vocabulary:
            return None
        return self.sites.replicated(["d2t"], lambda rows: self._checked(rows[0]))

    def _checked(self, d2t: np.ndarray) -> np.ndarray:
        ids = np.arange(len(d2t), dtype=np.int32) + d2t
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.config.vocab_size:
            raise CheckpointError(
                f"the draft's d2t leads to ids {low} to {high}, the target has 0 to {self.config.vocab_size - 1}"
            )
        return ids


def build_draft(
    source: TensorSource | Mapping[str, HostTensor],
    config: DFlashConfig,
    *,
    route: LinearRoute,
    dtype: Any,
    placement: Placement | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> DFlashParams:
    """Places a draft's checkpoint, site by site. Keys' and values' projections are placed twice: in each layer for the block,
    and side by side for the context.

    Args:
      source: the tensors, cut for as many ranks as the placement has; or whole host tensors by canonical name.
      config: the whole draft.
      route: which linear route the weights are packed for.
      dtype: compute dtype.
      placement: the devices; the first local one if it isn't given.
      progress: called with the checkpoint bytes of each finished site.

    Raises:
      CheckpointError: formats that a fused site can't hold, values that no format has, or ids that the target doesn't have.
      EngineError: a tensor can't be split over that many ranks.
    """
    placement = placement or Placement((jax.local_devices()[0],))
    if isinstance(source, Mapping):
        source = HostTensors(source, tensor_specs(config), placement.size)
    if source.ranks != placement.size:
        raise ValueError(f"tensors cut for {source.ranks} ranks, {placement.size} devices")
    sites = SiteBuilder(source, replace(route, separate=True), dtype, placement, progress)
    build = _DraftBuilder(sites, config)
    return DFlashParams(
        context=build.context(),
        layers=build.stack(),
        norm=sites.replicated(["norm.weight"], lambda rows: rows[0]),
        selector=build.selector(),
        mask_embedding=build.mask_embedding(),
        head=build.head(),
        target_ids=build.target_ids(),
    )
