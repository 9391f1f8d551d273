"""Builds stacks of weights from checkpoint tensors: fetched, fused, packed and placed, a few sites at once."""

import gc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array

from onecat_jax.custom_calls.linear import (
    Dense,
    DenseTensor,
    HostMatrix,
    Linear,
    LinearRoute,
    build_linear,
    exact_matrix,
)
from onecat_jax.custom_calls.linear.checks import check_tensor
from onecat_jax.errors import CheckpointError
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
from onecat_jax.models.tensors import HostTensor, Piece, TensorSource
from onecat_jax.sharding import Placement

Tree = TypeVar("Tree")
Later = Callable[[], Tree]  # waits for what has been started
CacheScales = Callable[[int], tuple[float, float]]  # layer -> scale of its keys and of its values


@dataclass(frozen=True)
class _Rows(Sequence):
    """The siblings of every layer of a site as one rank holds them, fetched when asked for."""

    piece: Piece
    rank: int
    names: Sequence[Sequence[str]]  # per layer
    decoded: bool  # whether quantised matrices are given as dense ones
    done: Callable[[Sequence[str]], None]  # told which tensors the reader is through with

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, at: Any) -> list[HostMatrix]:
        return [self._matrix(self.piece(name, self.rank)) for name in self.names[at]]

    def __iter__(self) -> Iterator[list[HostMatrix]]:
        for at, names in enumerate(self.names):
            yield self[at]
            self.done(names)

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
class Builder:
    """One model's weights for one placement."""

    source: TensorSource
    config: ModelConfig
    route: LinearRoute
    dtype: Any
    placement: Placement
    progress: Callable[[int], None]
    cache_scales: CacheScales | None
    workers: ThreadPoolExecutor
    started: list[Future[Any]] = field(default_factory=list)  # all sites

    def _start(self, names: Sequence[str], build: Callable[[Piece], Tree]) -> Later[Tree]:
        """Builds a site on one of the workers; sites are started in this order."""

        def site() -> Tree:
            with self.source.site(names) as piece:
                return build(piece)

        self.source.expect(names)
        self.started.append(self.workers.submit(site))
        return self.started[-1].result

    def finish(self) -> None:
        """Waits until all that was started is built, or raises what the first site to fail has raised."""
        wait(self.started, return_when=FIRST_EXCEPTION)
        for future in self.started:
            if future.done():
                future.result()

    def _split(
        self, names: Sequence[str], build: Callable[[Piece, int, jax.Device], Tree]
    ) -> Later[Tree]:
        """Builds a site rank by rank: what a rank needed on the host is gone before the next one starts."""

        def all_ranks(piece: Piece) -> Tree:
            ranks = self.placement.local_ranks()
            pieces = [_settled(build(piece, rank, device)) for rank, device in ranks]
            return self.placement.assemble(pieces)

        return self._start(names, all_ranks)

    def _advance(self, rank: int, names: Sequence[str]) -> None:
        """A rank has packed its part of these tensors."""
        ranks = [rank for rank, _ in self.placement.local_ranks()]
        done, count = ranks.index(rank), len(ranks)
        sizes = [self.source.nbytes(name) for name in names]
        self.progress(sum(s * (done + 1) // count - s * done // count for s in sizes))

    def _matrices(self, rows: Sequence[Sequence[str]], decoded: bool = False) -> Later[Linear]:
        def build(piece: Piece, rank: int, device: jax.Device) -> Linear:
            layers = _Rows(piece, rank, rows, decoded, partial(self._advance, rank))
            try:
                return build_linear(layers, route=self.route, dtype=self.dtype, device=device)
            except ValueError as error:
                found = layers.culprit(self.source.describe) or f"{', '.join(rows[0])}: {error}"
                raise CheckpointError(f"the weights can't be packed: {found}") from error

        return self._split([name for row in rows for name in row], build)

    def linear(self, layers: Sequence[int], *names: str) -> Later[Linear]:
        return self._matrices([[f"layers.{i}.{name}.weight" for name in names] for i in layers])

    def gates(self, layers: Sequence[int]) -> Later[Linear]:
        """The narrow projections of the gates, dense whatever stores them: decoded exactly, at the cost of few bytes."""
        rows = [[f"layers.{i}.{name}.weight" for name in GATES] for i in layers]
        return self._matrices(rows, decoded=True)

    def vocabulary(self, name: str) -> Later[Linear]:
        return self._matrices([[name]])

    def replicated(self, layers: Sequence[int], name: str) -> Later[Array]:
        """Stacks norm weights as float32, whole on every rank."""
        return self._replicate([f"layers.{i}.{name}" for i in layers], np.stack)

    def vector(self, name: str) -> Later[Array]:
        return self._replicate([name], lambda rows: rows[0])

    def final_norm(self) -> Later[Array]:
        return self.vector("norm.weight")

    def _replicate(self, names: Sequence[str], join: Callable[..., np.ndarray]) -> Later[Array]:
        ranks = [rank for rank, _ in self.placement.local_ranks()]

        def build(piece: Piece) -> Array:
            rows = [np.asarray(piece(name, ranks[0]), np.float32) for name in names]
            placed = _settled(self.placement.replicate(join(rows)))
            for rank in ranks:
                self._advance(rank, names)
            return placed

        return self._start(names, build)

    def split(
        self,
        layers: Sequence[int],
        name: str,
        reorder: Callable[[np.ndarray], np.ndarray] = lambda x: x,
    ) -> Later[Array]:
        """Stacks small tensors that are split over ranks, as float32: gates and convolutions are computed in it."""
        names = [f"layers.{i}.{name}" for i in layers]

        def build(piece: Piece, rank: int, device: jax.Device) -> Array:
            rows = [reorder(np.asarray(piece(n, rank), np.float32)) for n in names]
            self._advance(rank, names)
            return jax.device_put(np.stack(rows), device)

        return self._split(names, build)

    def gdn(self, layers: Sequence[int]) -> Later[GDNStack]:
        name = "linear_attn"
        return _all(
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
        return _all(
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
        return self.placement.replicate(np.asarray(rows, np.float32))

    def mlp(self, layers: Sequence[int]) -> Later[MLPStack]:
        return _all(
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
        head = replace(self, source=source, config=config, cache_scales=None)
        layers = range(config.num_hidden_layers)
        return _all(
            MTPParams,
            embed_norm=head.vector("pre_fc_norm_embedding.weight"),
            hidden_norm=head.vector("pre_fc_norm_hidden.weight"),
            fc=head.vocabulary("fc.weight"),
            attention=head.attention(layers),
            mlp=head.mlp(layers),
            norm=head.final_norm(),
        )

    def params(self, plans: Sequence[SegmentPlan], loops: Loops) -> Later[Params]:
        segments = [self.segment(plan, loops) for plan in plans]
        embed = self.vocabulary("embed_tokens.weight")
        tied = self.source.kind("lm_head.weight") is None
        head = embed if tied else self.vocabulary("lm_head.weight")
        norm = self.final_norm()
        return lambda: Params(
            _dense(embed()), tuple(segment() for segment in segments), norm(), head()
        )


def _all(cls: Callable[..., Tree], **fields: Callable[[], Any]) -> Later[Tree]:
    """A stack, when all of its fields are there."""
    return lambda: cls(**{name: later() for name, later in fields.items()})


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
