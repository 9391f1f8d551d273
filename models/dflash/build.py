"""Checkpoint tensors -> device parameters of a draft."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import jax
import numpy as np
from jax import Array

from onecat_jax.custom_calls.linear import Dense, Linear, LinearRoute
from onecat_jax.errors import CheckpointError
from onecat_jax.models.dflash.config import DFlashConfig
from onecat_jax.models.dflash.params import tensor_specs
from onecat_jax.models.dflash.weights import Context, ConvStack, DFlashParams, LayerStack, Selector
from onecat_jax.models.sites import Later, Sites, all_of, build_sites, check_alike, source_of
from onecat_jax.models.tensors import HostTensor, TensorSource
from onecat_jax.sharding import Placement

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_STACKS = (_QKV, ("self_attn.o_proj",), ("mlp.gate_proj", "mlp.up_proj"), ("mlp.down_proj",))


def _nothing() -> None:
    """A field of what this draft doesn't have."""


@dataclass(frozen=True)
class _DraftBuilder:
    sites: Sites
    config: DFlashConfig

    def _rows(self, *modules: str, leaf: str = "weight") -> list[list[str]]:
        layers = range(self.config.num_hidden_layers)
        return [[f"layers.{i}.{module}.{leaf}" for module in modules] for i in layers]

    def _linear(self, *modules: str) -> Later[Linear]:
        return self.sites.matrices(self._rows(*modules))

    def _vectors(self, module: str, leaf: str = "weight") -> Later[Array]:
        return self.sites.replicated([name for (name,) in self._rows(module, leaf=leaf)])

    def _has(self, name: str) -> bool:
        return self.sites.source.kind(name) is not None

    def _conv(self, name: str) -> Later[ConvStack | None]:
        if not self.config.selects:
            return _nothing
        return all_of(
            ConvStack,
            base_kernel=self._vectors(name, "base_kernel"),
            kernel_projection=self._linear(f"{name}.kernel_projection"),
        )

    def _layers(self) -> Later[LayerStack]:
        bias = self.config.attention_bias
        return all_of(
            LayerStack,
            input_norm=self._vectors("input_layernorm"),
            qkv_proj=self._linear(*_QKV),
            qkv_bias=self.sites.split(self._rows(*_QKV, leaf="bias")) if bias else _nothing,
            q_norm=self._vectors("self_attn.q_norm"),
            k_norm=self._vectors("self_attn.k_norm"),
            o_proj=self._linear("self_attn.o_proj"),
            o_bias=self._vectors("self_attn.o_proj", "bias") if bias else _nothing,
            post_norm=self._vectors("post_attention_layernorm"),
            gate_up_proj=self._linear("mlp.gate_proj", "mlp.up_proj"),
            down_proj=self._linear("mlp.down_proj"),
            attention_conv=self._conv("attention_conv"),
            mlp_conv=self._conv("mlp_conv"),
        )

    def _context(self) -> Later[Context]:
        bias = self.config.attention_bias
        return all_of(
            Context,
            fc=self.sites.matrices([["fc.weight"]]),
            hidden_norm=self.sites.vector("hidden_norm.weight"),
            kv_proj=self.sites.matrices([self._keys_and_values("weight")]),
            kv_bias=self.sites.split([self._keys_and_values("bias")]) if bias else _nothing,
        )

    def _keys_and_values(self, leaf: str) -> list[str]:
        """Of all layers: one product for the context, which all layers read."""
        return [name for row in self._rows(*_QKV[1:], leaf=leaf) for name in row]

    def _selector(self) -> Later[Selector | None]:
        if not self.config.selects:
            return _nothing
        name = "candidate_selector"
        return all_of(
            Selector,
            predecessor=self._codebook(f"{name}.predecessor_codebook"),
            successor=self._codebook(f"{name}.successor_codebook"),
            hidden_projection=self.sites.matrices([[f"{name}.hidden_projection.weight"]]),
        )

    def _codebook(self, name: str) -> Later[Dense]:
        return cast(Later[Dense], self.sites.matrices([[name]]))  # its spec allows nothing else

    def _target_ids(self) -> Later[Array | None]:
        """d2t holds what must be added to a draft id."""
        if not self.config.own_vocabulary:
            return _nothing
        return self.sites.replicated(["d2t"], lambda rows: self._checked(rows[0]))

    def _checked(self, d2t: np.ndarray) -> np.ndarray:
        ids = np.arange(len(d2t), dtype=np.int32) + d2t
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.config.vocab_size:
            raise CheckpointError(
                f"the draft's d2t leads to ids {low} to {high}, the target has 0 to {self.config.vocab_size - 1}"
            )
        return ids

    def params(self) -> Later[DFlashParams]:
        mask, head = "mask_embedding", "lm_head.weight"
        return all_of(
            DFlashParams,
            context=self._context(),
            layers=self._layers(),
            norm=self.sites.vector("norm.weight"),
            selector=self._selector(),
            mask_embedding=self.sites.vector(mask) if self._has(mask) else _nothing,
            head=self.sites.matrices([[head]]) if self._has(head) else _nothing,
            target_ids=self._target_ids(),
        )


def _check_formats(source: TensorSource, config: DFlashConfig) -> None:
    """A stack holds one format, and keys and values of all layers are multiplied together."""
    for modules in _STACKS:
        layers = range(config.num_hidden_layers)
        check_alike(source, [f"layers.{i}.{m}.weight" for i in layers for m in modules])


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
      progress: called with checkpoint bytes as they are packed, from one thread at a time.

    Raises:
      CheckpointError: formats that a site can't hold, when nothing has been placed yet; values that no format has; or ids that
        the target doesn't have.
      EngineError: a tensor can't be split over that many ranks.
    """
    placement = placement or Placement((jax.local_devices()[0],))
    tensors = source_of(source, tensor_specs(config), placement)
    _check_formats(tensors, config)
    return build_sites(
        lambda sites: _DraftBuilder(sites, config).params(),
        tensors,
        route=replace(route, separate=True),
        dtype=dtype,
        placement=placement,
        progress=progress,
    )
