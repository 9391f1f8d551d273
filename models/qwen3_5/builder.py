"""The stacks of a model, each built from sites of its checkpoint."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from jax import Array

from onecat_jax.custom_calls.linear import Dense, Linear
from onecat_jax.models.qwen3_5.config import ModelConfig
from onecat_jax.models.qwen3_5.segments import GATES, SegmentPlan
from onecat_jax.models.qwen3_5.weights import (
    AttentionStack,
    GDNStack,
    Loops,
    MLPStack,
    MTPParams,
    Params,
    Segment,
)
from onecat_jax.models.sites import Later, Sites, all_of
from onecat_jax.models.tensors import TensorSource

CacheScales = Callable[[int], tuple[float, float]]  # layer -> scale of its keys and of its values


@dataclass(frozen=True)
class Builder:
    """One model's weights for one placement."""

    sites: Sites
    config: ModelConfig
    cache_scales: CacheScales | None

    def linear(self, layers: Sequence[int], *names: str) -> Later[Linear]:
        return self.sites.matrices(
            [[f"layers.{i}.{name}.weight" for name in names] for i in layers]
        )

    def gates(self, layers: Sequence[int]) -> Later[Linear]:
        """The narrow projections of the gates, dense whatever stores them: decoded exactly, at the cost of few bytes."""
        rows = [[f"layers.{i}.{name}.weight" for name in GATES] for i in layers]
        return self.sites.matrices(rows, decoded=True)

    def vocabulary(self, name: str) -> Later[Linear]:
        return self.sites.matrices([[name]])

    def replicated(self, layers: Sequence[int], name: str) -> Later[Array]:
        """Stacks norm weights, whole on every rank."""
        return self.sites.replicated([f"layers.{i}.{name}" for i in layers])

    def final_norm(self) -> Later[Array]:
        return self.sites.vector("norm.weight")

    def split(
        self,
        layers: Sequence[int],
        name: str,
        reorder: Callable[[np.ndarray], np.ndarray] = lambda x: x,
    ) -> Later[Array]:
        """Stacks small tensors that are split over ranks: gates and convolutions, which are computed in float32."""
        return self.sites.split([[f"layers.{i}.{name}"] for i in layers], reorder)

    def gdn(self, layers: Sequence[int]) -> Later[GDNStack]:
        name = "linear_attn"
        return all_of(
            GDNStack,
            input_norm=self.replicated(layers, "input_layernorm.weight"),
            in_proj=self.linear(layers, f"{name}.in_proj_qkv", f"{name}.in_proj_z"),
            gate_proj=self.gates(layers),
            conv=self.split(layers, f"{name}.conv1d.weight", lambda w: w[:, 0].T),
            a_log=self.split(layers, f"{name}.A_log"),
            dt_bias=self.split(layers, f"{name}.dt_bias"),
            out_norm=self.replicated(layers, f"{name}.norm.weight"),
            out_proj=self.linear(layers, f"{name}.out_proj"),
        )

    def attention(self, layers: Sequence[int]) -> Later[AttentionStack]:
        name = "self_attn"
        return all_of(
            AttentionStack,
            input_norm=self.replicated(layers, "input_layernorm.weight"),
            qkv_proj=self.linear(layers, f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj"),
            q_norm=self.replicated(layers, f"{name}.q_norm.weight"),
            k_norm=self.replicated(layers, f"{name}.k_norm.weight"),
            o_proj=self.linear(layers, f"{name}.o_proj"),
            cache_scales=partial(self.scales, layers),
        )

    def scales(self, layers: Sequence[int]) -> Array | None:
        """Of keys and values, the same on every rank."""
        if self.cache_scales is None:
            return None
        rows = [self.cache_scales(layer) for layer in layers]
        return self.sites.placement.replicate(np.asarray(rows, np.float32))

    def mlp(self, layers: Sequence[int]) -> Later[MLPStack]:
        return all_of(
            MLPStack,
            input_norm=self.replicated(layers, "post_attention_layernorm.weight"),
            gate_up_proj=self.linear(layers, "mlp.gate_proj", "mlp.up_proj"),
            down_proj=self.linear(layers, "mlp.down_proj"),
        )

    def segment(self, plan: SegmentPlan, loops: Loops) -> Later[Segment]:
        gdn, attention = plan.layers("linear_attention"), plan.layers("full_attention")
        before = self.config.layer_types[: plan.first]
        mlp = self.mlp(plan.layers())  # first, for it is the largest, and the last one runs alone
        mixers = (self.gdn(gdn) if gdn else None, self.attention(attention) if attention else None)

        def segment() -> Segment:
            return Segment(
                gdn=mixers[0]() if mixers[0] else None,
                attention=mixers[1]() if mixers[1] else None,
                mlp=mlp(),
                pattern=plan.pattern,
                repeats=plan.repeats,
                first_gdn=before.count("linear_attention"),
                first_attention=before.count("full_attention"),
                loops=loops,
            )

        return segment

    def mtp(self, source: TensorSource, config: ModelConfig) -> Later[MTPParams]:
        """The MTP head, whose tensors and layers these are. Stored scales of a cache are those of the model's own layers."""
        head = Builder(replace(self.sites, source=source), config, None)
        layers = range(config.num_hidden_layers)
        return all_of(
            MTPParams,
            embed_norm=head.sites.vector("pre_fc_norm_embedding.weight"),
            hidden_norm=head.sites.vector("pre_fc_norm_hidden.weight"),
            fc=head.vocabulary("fc.weight"),
            attention=head.attention(layers),
            mlp=head.mlp(layers),
            norm=head.final_norm(),
        )

    def params(self, plans: Sequence[SegmentPlan], loops: Loops) -> Later[Params]:
        segments = [self.segment(plan, loops) for plan in plans]
        embed = self.vocabulary("embed_tokens.weight")
        tied = self.sites.source.kind("lm_head.weight") is None
        head = embed if tied else self.vocabulary("lm_head.weight")
        norm = self.final_norm()
        return lambda: Params(
            _dense(embed()), tuple(segment() for segment in segments), norm(), head()
        )


def _dense(weight: Linear) -> Dense:
    if not isinstance(weight, Dense):
        raise TypeError(f"a dense weight is needed here, found {type(weight).__name__}")
    return weight
