"""Checkpoint tensors -> device parameters: segments, fusing, stacking, one site at a time."""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array

from onecat_jax.custom_calls.linear import (
    Dense,
    DenseTensor,
    FP8Tensor,
    HostMatrix,
    INT4Tensor,
    Linear,
    LinearRoute,
    NVFP4Tensor,
    build_linear,
    exact_matrix,
)
from onecat_jax.custom_calls.linear.checks import check_tensor
from onecat_jax.errors import CheckpointError
from onecat_jax.models.qwen3_5.config import LayerKind, ModelConfig
from onecat_jax.models.qwen3_5.mtp_source import mtp_config, mtp_source
from onecat_jax.models.qwen3_5.params import tensor_specs
from onecat_jax.models.qwen3_5.weights import (
    AttentionStack,
    GDNStack,
    Loops,
    MLPStack,
    MTPParams,
    Params,
    Segment,
)
from onecat_jax.models.tensors import HostTensor, HostTensors, Piece, TensorSource
from onecat_jax.sharding import Placement

_FUSED_SITES = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"),
    ("mlp.gate_proj", "mlp.up_proj"),
)
_FORMATS = {DenseTensor: "dense", NVFP4Tensor: "NVFP4", FP8Tensor: "FP8", INT4Tensor: "INT4"}
_GATES = ("linear_attn.in_proj_b", "linear_attn.in_proj_a")

Tree = TypeVar("Tree")
CacheScales = Callable[[int], tuple[float, float]]  # layer -> scale of its keys and of its values


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
class _Rows(Sequence):
    """The siblings of every layer of a site as one rank holds them, fetched when asked for."""

    piece: Piece
    rank: int
    names: Sequence[Sequence[str]]  # per layer
    decoded: bool  # whether quantised matrices are given as dense ones

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, at: Any) -> list[HostMatrix]:
        return [self._matrix(self.piece(name, self.rank)) for name in self.names[at]]

    def _matrix(self, tensor: HostTensor) -> HostMatrix:
        if isinstance(tensor, np.ndarray):
            return DenseTensor(tensor)
        if not self.decoded or isinstance(tensor, DenseTensor):
            return tensor
        return DenseTensor(exact_matrix(tensor).astype(np.float32))

    def culprit(self, describe: Callable[[str], str]) -> str:
        """The first tensor that can't be packed by itself, and why; "" if all can."""
        for name in (name for names in self.names for name in names):
            try:
                check_tensor(self._matrix(self.piece(name, self.rank)))
            except ValueError as error:
                return f"{describe(name)}: {error}"
        return ""


@dataclass(frozen=True)
class _Builder:
    source: TensorSource
    config: ModelConfig
    route: LinearRoute
    dtype: Any
    placement: Placement
    progress: Callable[[int], None]
    cache_scales: CacheScales | None

    def _split(self, names: Sequence[str], build: Callable[[Piece, int, jax.Device], Tree]) -> Tree:
        """Builds a site rank by rank: what a rank needed on the host is gone before the next one starts."""
        with self.source.site(names) as piece:
            ranks = self.placement.local_ranks()
            pieces = [_settled(build(piece, rank, device)) for rank, device in ranks]
        self._advance(names)
        return self.placement.assemble(pieces)

    def _advance(self, names: Sequence[str]) -> None:
        self.progress(sum(map(self.source.nbytes, names)))

    def _matrices(self, rows: Sequence[Sequence[str]], decoded: bool = False) -> Linear:
        def build(piece: Piece, rank: int, device: jax.Device) -> Linear:
            layers = _Rows(piece, rank, rows, decoded)
            try:
                return build_linear(layers, route=self.route, dtype=self.dtype, device=device)
            except ValueError as error:
                found = layers.culprit(self.source.describe) or f"{', '.join(rows[0])}: {error}"
                raise CheckpointError(f"the weights can't be packed: {found}") from error

        return self._split([name for row in rows for name in row], build)

    def linear(self, layers: Sequence[int], *names: str) -> Linear:
        return self._matrices([[f"layers.{i}.{name}.weight" for name in names] for i in layers])

    def gates(self, layers: Sequence[int]) -> Dense:
        """The narrow projections of the gates, dense whatever stores them: decoded exactly, at the cost of few bytes."""
        rows = [[f"layers.{i}.{name}.weight" for name in _GATES] for i in layers]
        return _dense(self._matrices(rows, decoded=True))

    def vocabulary(self, name: str) -> Linear:
        return self._matrices([[name]])

    def replicated(self, layers: Sequence[int], name: str) -> Array:
        """Stacks norm weights as float32, whole on every rank."""
        return self._replicate([f"layers.{i}.{name}" for i in layers], np.stack)

    def vector(self, name: str) -> Array:
        return self._replicate([name], lambda rows: rows[0])

    def final_norm(self) -> Array:
        return self.vector("norm.weight")

    def _replicate(self, names: Sequence[str], join: Callable[..., np.ndarray]) -> Array:
        with self.source.site(names) as piece:
            rank = next(rank for rank, _ in self.placement.local_ranks())
            rows = [np.asarray(piece(name, rank), np.float32) for name in names]
            placed = _settled(self.placement.replicate(join(rows)))
        self._advance(names)
        return placed

    def split(
        self,
        layers: Sequence[int],
        name: str,
        reorder: Callable[[np.ndarray], np.ndarray] = lambda x: x,
    ) -> Array:
        """Stacks small tensors that are split over ranks, as float32: gates and convolutions are computed in it."""
        names = [f"layers.{i}.{name}" for i in layers]

        def build(piece: Piece, rank: int, device: jax.Device) -> Array:
            rows = [reorder(np.asarray(piece(n, rank), np.float32)) for n in names]
            return jax.device_put(np.stack(rows), device)

        return self._split(names, build)

    def gdn(self, layers: Sequence[int]) -> GDNStack:
        name = "linear_attn"
        return GDNStack(
            input_norm=self.replicated(layers, "input_layernorm.weight"),
            in_proj=self.linear(layers, f"{name}.in_proj_qkv", f"{name}.in_proj_z"),
            gate_proj=self.gates(layers),
            conv=self.split(layers, f"{name}.conv1d.weight", lambda w: w[:, 0].T),
            a_log=self.split(layers, f"{name}.A_log"),
            dt_bias=self.split(layers, f"{name}.dt_bias"),
            out_norm=self.replicated(layers, f"{name}.norm.weight"),
            out_proj=self.linear(layers, f"{name}.out_proj"),
        )

    def attention(self, layers: Sequence[int]) -> AttentionStack:
        name = "self_attn"
        return AttentionStack(
            input_norm=self.replicated(layers, "input_layernorm.weight"),
            qkv_proj=self.linear(layers, f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj"),
            q_norm=self.replicated(layers, f"{name}.q_norm.weight"),
            k_norm=self.replicated(layers, f"{name}.k_norm.weight"),
            o_proj=self.linear(layers, f"{name}.o_proj"),
            cache_scales=self.scales(layers),
        )

    def scales(self, layers: Sequence[int]) -> Array | None:
        """Of keys and values, the same on every rank."""
        if self.cache_scales is None:
            return None
        rows = [self.cache_scales(layer) for layer in layers]
        return self.placement.replicate(np.asarray(rows, np.float32))

    def mlp(self, layers: Sequence[int]) -> MLPStack:
        return MLPStack(
            input_norm=self.replicated(layers, "post_attention_layernorm.weight"),
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


def _settled(placed: Tree) -> Tree:
    """Waits until arrays are on their device and what they were copied from is free.

    JAX lets go of host arrays only when it is called the next time, or in a collection of the youngest objects.
    """
    jax.block_until_ready(placed)
    gc.collect(0)
    return placed


def _dense(weight: Linear) -> Dense:
    if not isinstance(weight, Dense):
        raise TypeError(f"a dense weight is needed here, found {type(weight).__name__}")
    return weight


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


def _signatures(source: TensorSource, config: ModelConfig) -> list[tuple[LayerKind, Any]]:
    """Per layer its kind and the formats of its tensors; those of the gates don't matter."""
    formats: dict[str, list[tuple[str, str, str]]] = {}
    for name in source.names:
        kind = source.kind(name)
        if name.startswith("layers.") and kind is not None:
            _, layer, leaf = name.split(".", 2)
            if leaf.removesuffix(".weight") not in _GATES:
                formats.setdefault(layer, []).append((leaf, kind.__name__, source.variant(name)))
    return [(k, tuple(sorted(formats.get(str(i), ())))) for i, k in enumerate(config.layer_types)]


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
    """Places a checkpoint, site by site: every rank's piece of a weight is fused and packed on its own.

    Every array that is split holds the pieces of all ranks side by side on axis 0, in rank order; norms of the residual stream
    and of heads are the same on all ranks (`specs.param_specs`).

    Args:
      source: the tensors, cut for as many ranks as the placement has; or whole host tensors by canonical name.
      config: the whole model.
      route: which linear route the weights are packed for.
      dtype: compute dtype.
      loops: which layer loops run on the device.
      placement: the devices; the first local one if it isn't given.
      progress: called with the checkpoint bytes of each finished site.
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
    builder = _Builder(source, config, route, dtype, placement, progress, cache_scales)
    plans = plan_segments(_signatures(source, config))
    segments = tuple(builder.segment(plan, loops) for plan in plans)
    embed = builder.vocabulary("embed_tokens.weight")
    head = embed if source.kind("lm_head.weight") is None else builder.vocabulary("lm_head.weight")
    params = Params(_dense(embed), segments, builder.final_norm(), head)
    return replace(params, mtp=_mtp(builder)) if mtp else params


def _mtp(builder: _Builder) -> MTPParams:
    """The MTP head. Stored scales of cached keys and values are the model's own layers'."""
    config = mtp_config(builder.config)
    source = mtp_source(builder.source, config)
    head = replace(builder, source=source, config=config, cache_scales=None)
    layers = range(config.num_hidden_layers)
    try:
        _check_formats(source, config)
        return MTPParams(
            embed_norm=head.vector("pre_fc_norm_embedding.weight"),
            hidden_norm=head.vector("pre_fc_norm_hidden.weight"),
            fc=head.vocabulary("fc.weight"),
            attention=head.attention(layers),
            mlp=head.mlp(layers),
            norm=head.final_norm(),
        )
    except CheckpointError as error:
        raise CheckpointError(f"MTP head (tensors under mtp.): {error}") from error
