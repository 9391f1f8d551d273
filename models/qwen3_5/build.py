"""Checkpoint tensors -> device parameters: segments, fusing, stacking, one site at a time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from onecat_jax.custom_calls.linear import (
    Dense,
    DenseTensor,
    Linear,
    LinearRoute,
    NVFP4Tensor,
    build_linear,
)
from onecat_jax.errors import CheckpointError
from onecat_jax.models.qwen3_5.config import LayerKind, ModelConfig
from onecat_jax.models.qwen3_5.weights import (
    AttentionStack,
    GDNStack,
    Loops,
    MLPStack,
    Params,
    Segment,
)

_FUSED_SITES = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"),
    ("linear_attn.in_proj_b", "linear_attn.in_proj_a"),
    ("mlp.gate_proj", "mlp.up_proj"),
)
_DENSE_SITE = "linear_attn.in_proj_b"

HostTensors = Mapping[str, Any]  # canonical name -> DenseTensor | NVFP4Tensor | np.ndarray


@dataclass(frozen=True)
class SegmentPlan:
    """Layers first .. first + len(pattern) * repeats - 1 of the model."""

    pattern: tuple[LayerKind, ...]
    repeats: int
    first: int

    def layers(self, kind: LayerKind | None = None) -> list[int]:
        """Absolute indices of the segment's layers, of one kind or all."""
        kinds = self.pattern * self.repeats
        return [self.first + i for i, k in enumerate(kinds) if kind in (None, k)]


def plan_segments(signatures: Sequence[tuple[LayerKind, Any]]) -> tuple[SegmentPlan, ...]:
    """Cuts the layer list into runs of one repeating superblock, longest coverage first, shortest period on a tie.

    Args:
      signatures: per layer its kind and its formats; layers of a superblock position must agree in both.
    """
    plans: list[SegmentPlan] = []
    start = 0
    while start < len(signatures):
        rest = signatures[start:]
        period, repeats = max(
            ((p, _repeats(rest, p)) for p in range(1, len(rest) + 1)),
            key=lambda c: (_score(*c), -c[0]),
        )
        pattern = tuple(kind for kind, _ in rest[:period])
        plans.append(SegmentPlan(pattern, repeats, start))
        start += period * repeats
    return tuple(plans)


def _repeats(rest: Sequence[Any], period: int) -> int:
    count = 1
    while tuple(rest[count * period : (count + 1) * period]) == tuple(rest[:period]):
        count += 1
    return count


def _score(period: int, repeats: int) -> int:
    return period * repeats if repeats > 1 else 1


@dataclass(frozen=True)
class _Builder:
    tensors: HostTensors
    config: ModelConfig
    route: LinearRoute
    dtype: Any
    progress: Callable[[int], None]

    def linear(self, layers: Sequence[int], *names: str) -> Linear:
        rows = [[self.tensors[f"layers.{i}.{name}.weight"] for name in names] for i in layers]
        built = build_linear(rows, route=self.route, dtype=self.dtype)
        self.progress(sum(_host_bytes(t) for row in rows for t in row))
        return built

    def vocabulary(self, name: str) -> Linear:
        tensor = self.tensors[name]
        tensor = DenseTensor(tensor) if isinstance(tensor, np.ndarray) else tensor
        built = build_linear([[tensor]], route=self.route, dtype=self.dtype)
        self.progress(_host_bytes(tensor))
        return built

    def vectors(self, layers: Sequence[int], name: str) -> Array:
        """Stacks small tensors as float32: norms, gates and convolutions are computed in float32."""
        rows = [np.asarray(self.tensors[f"layers.{i}.{name}"], np.float32) for i in layers]
        return jnp.asarray(np.stack(rows))

    def gdn(self, layers: Sequence[int]) -> GDNStack:
        name = "linear_attn"
        return GDNStack(
            input_norm=self.vectors(layers, "input_layernorm.weight"),
            in_proj=self.linear(layers, f"{name}.in_proj_qkv", f"{name}.in_proj_z"),
            gate_proj=_dense(self.linear(layers, f"{name}.in_proj_b", f"{name}.in_proj_a")),
            conv=self.vectors(layers, f"{name}.conv1d.weight")[:, :, 0].swapaxes(1, 2),
            a_log=self.vectors(layers, f"{name}.A_log"),
            dt_bias=self.vectors(layers, f"{name}.dt_bias"),
            out_norm=self.vectors(layers, f"{name}.norm.weight"),
            out_proj=self.linear(layers, f"{name}.out_proj"),
        )

    def attention(self, layers: Sequence[int]) -> AttentionStack:
        name = "self_attn"
        return AttentionStack(
            input_norm=self.vectors(layers, "input_layernorm.weight"),
            qkv_proj=self.linear(layers, f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj"),
            q_norm=self.vectors(layers, f"{name}.q_norm.weight"),
            k_norm=self.vectors(layers, f"{name}.k_norm.weight"),
            o_proj=self.linear(layers, f"{name}.o_proj"),
        )

    def mlp(self, layers: Sequence[int]) -> MLPStack:
        return MLPStack(
            input_norm=self.vectors(layers, "post_attention_layernorm.weight"),
            gate_up_proj=self.linear(layers, "mlp.gate_proj", "mlp.up_proj"),
            down_proj=self.linear(layers, "mlp.down_proj"),
        )

    def segment(self, plan: SegmentPlan, loops: Loops) -> Segment:
        gdn, attention = plan.layers("linear_attention"), plan.layers("full_attention")
        before = self.config.layer_types[: plan.first]
        return Segment(
            gdn=self.gdn(gdn) if gdn else None,
            attention=self.attention(attention) if attention else None,
            mlp=self.mlp(plan.layers()),
            pattern=plan.pattern,
            repeats=plan.repeats,
            first_gdn=before.count("linear_attention"),
            first_attention=before.count("full_attention"),
            loops=loops,
        )


def _dense(weight: Linear) -> Dense:
    if not isinstance(weight, Dense):
        raise TypeError(f"a dense weight is needed here, found {type(weight).__name__}")
    return weight


def _check_formats(tensors: HostTensors, config: ModelConfig) -> None:
    """Refuses formats that a fused site can't hold, before anything is placed.

    Raises:
      CheckpointError: siblings of one site stored in different formats, or quantised GDN gates.
    """
    for layer in range(config.num_hidden_layers):
        for site in _FUSED_SITES:
            names = [f"layers.{layer}.{name}.weight" for name in site]
            kinds = {n: type(tensors[n]) for n in names if n in tensors}
            shown = ", ".join(f"{n} is {kind.__name__}" for n, kind in kinds.items())
            if len(set(kinds.values())) > 1:
                raise CheckpointError(
                    f"{shown}; tensors that are multiplied together must be stored in one format: "
                    "use an export that quantises all of them or none."
                )
            if site[0] == _DENSE_SITE and NVFP4Tensor in kinds.values():
                raise CheckpointError(
                    f"{shown}; quantised GDN gates aren't implemented yet: use an export that leaves "
                    "in_proj_a and in_proj_b dense."
                )


def _host_bytes(tensor: DenseTensor | NVFP4Tensor) -> int:
    if isinstance(tensor, DenseTensor):
        return tensor.weight.nbytes
    return tensor.codes.nbytes + tensor.scales.nbytes


def _signature(tensors: HostTensors, layer: int, kind: LayerKind) -> tuple[LayerKind, Any]:
    prefix = f"layers.{layer}."
    formats = {n.removeprefix(prefix): type(t) for n, t in tensors.items() if n.startswith(prefix)}
    return kind, tuple(sorted((n, t.__name__) for n, t in formats.items()))


def build_params(
    tensors: HostTensors,
    config: ModelConfig,
    *,
    route: LinearRoute,
    dtype: Any,
    loops: Loops,
    progress: Callable[[int], None] = lambda _: None,
) -> Params:
    """Places a checkpoint on the default device.

    Args:
      tensors: canonical name -> host tensor (views; read site by site).
      config: the model.
      route: which linear route the weights are packed for.
      dtype: compute dtype.
      loops: which layer loops run on the device.
      progress: called with the checkpoint bytes of each finished site.

    Raises:
      CheckpointError: formats that a fused site can't hold; nothing has been placed then.
    """
    _check_formats(tensors, config)
    builder = _Builder(tensors, config, route, dtype, progress)
    signatures = [_signature(tensors, i, kind) for i, kind in enumerate(config.layer_types)]
    segments = tuple(builder.segment(p, loops) for p in plan_segments(signatures))
    embed = builder.vocabulary("embed_tokens.weight")
    head = builder.vocabulary("lm_head.weight") if "lm_head.weight" in tensors else embed
    norm = jnp.asarray(np.asarray(tensors["norm.weight"], np.float32))
    return Params(_dense(embed), segments, norm, head)
