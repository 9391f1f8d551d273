"""A model with its caches and no engine around it, for tests that look at logits."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec as P

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import DenseTensor, LinearRoute
from onecat_jax.device_state import empty_state
from onecat_jax.models.qwen3_5 import (
    ForwardOptions,
    ModelConfig,
    Params,
    StepBatch,
    build_params,
    forward,
    logits,
    tensor_specs,
)
from onecat_jax.models.qwen3_5.specs import param_specs
from onecat_jax.models.qwen3_5.weights import Loops
from onecat_jax.sharding import TP, Placement
from onecat_jax.state import CacheState

PAGE = 16


def host_tensors(named: Mapping[str, np.ndarray], config: ModelConfig) -> dict[str, Any]:
    """Hugging Face names -> what the loader hands to `build_params`."""
    specs = tensor_specs(config)
    bare = {name.removeprefix("model."): value for name, value in named.items()}
    return {
        name: DenseTensor(bare[name]) if spec.kind == "linear" else bare[name]
        for name, spec in specs.items()
        if name in bare
    }


@dataclass(frozen=True)
class Harness:
    """One model, up to `slots - 1` sequences of up to `capacity` tokens each; slot s owns pages of its own."""

    params: Params
    options: ForwardOptions
    capacity: int
    placement: Placement
    slots: int = 3

    @cached_property
    def step(self):
        """Jitted (params, state, batch) -> (logits [B, T, V] float32, state)."""
        state = jax.eval_shape(self.new_state).specs(TP)
        step = self.placement.shard_map(
            partial(_step, options=self.options),
            in_specs=(param_specs(self.params), state, P()),
            out_specs=(P(None, None, TP), state),
        )
        return jax.jit(step, donate_argnums=1)

    @property
    def table_pages(self) -> int:
        return -(-self.capacity // PAGE)

    def new_state(self, poison: float = 0.0) -> CacheState:
        """Fresh caches; `poison` fills everything that isn't padding, as earlier users of the memory would."""
        pages = self.table_pages * (self.slots - 1) + 1
        shape = self.options.local.cache_shape(pages=pages, page_size=PAGE, slots=self.slots)
        dtype = jnp.dtype(self.options.dtype)
        state = empty_state(self.placement, shape, kv_dtype=dtype, window_dtype=dtype)
        return jax.tree.map(partial(_poisoned, poison=poison), state)

    def batch(self, tokens: Sequence[int], start: int, width: int, slot: int = 1) -> StepBatch:
        """One sequence's rows, padded to `width`, beside an empty batch row."""
        padded = np.zeros((2, width), np.int32)
        padded[0, : len(tokens)] = tokens
        first = 1 + (slot - 1) * self.table_pages
        table = np.zeros((2, self.table_pages), np.int32)
        table[0] = np.arange(first, first + self.table_pages)
        return StepBatch(
            tokens=jnp.asarray(padded),
            start=jnp.asarray([start, 0], jnp.int32),
            count=jnp.asarray([len(tokens), 0], jnp.int32),
            slots=jnp.asarray([slot, 0], jnp.int32),
            table=jnp.asarray(table),
        )

    def run(
        self, state: CacheState, tokens: Sequence[int], start: int, width: int, slot: int = 1
    ) -> tuple[np.ndarray, CacheState]:
        """Logits [len(tokens), V] of one sequence's next rows."""
        out, state = self.step(self.params, state, self.batch(tokens, start, width, slot))
        return np.asarray(out[0, : len(tokens)]), state

    def prefill(
        self,
        state: CacheState,
        tokens: Sequence[int],
        chunks: Sequence[int],
        width: int,
        slot: int = 1,
    ) -> Iterator[tuple[np.ndarray, CacheState]]:
        """Runs `tokens` in pieces of these lengths."""
        start = 0
        for size in chunks:
            out, state = self.run(state, tokens[start : start + size], start, width, slot)
            start += size
            yield out, state


def _poisoned(cache: Array, poison: float) -> Array:
    """Counts hold no NaN: any other number will do."""
    number = poison if np.isfinite(poison) or jnp.issubdtype(cache.dtype, jnp.floating) else 12345
    return cache + jnp.asarray(number, cache.dtype)


def _step(params: Params, state: CacheState, batch: StepBatch, options: ForwardOptions):
    hidden, state = forward(params, state, batch, options)
    return logits(params, hidden, options), state


def build(
    named: Mapping[str, np.ndarray],
    config_json: Mapping[str, Any],
    *,
    capacity: int,
    dtype: str = "float32",
    policy: Policy | None = None,
    loops: Loops = "layers",
    ranks: int = 1,
) -> Harness:
    """A harness around seeded weights, split over so many devices."""
    config = ModelConfig.from_hf(config_json)
    policy, placement = policy or Policy(), Placement.of(ranks)
    params = build_params(
        host_tensors(named, config),
        config,
        route=LinearRoute(policy, separate=loops == "none"),
        dtype=dtype,
        loops=loops,
        placement=placement,
    )
    options = ForwardOptions(config, dtype, policy, placement.shards)
    return Harness(params, options, capacity, placement)


def relative(found: Array | np.ndarray, expected: np.ndarray, scale: float) -> float:
    """Largest absolute difference as a part of `scale`."""
    return float(np.abs(np.asarray(found, np.float64) - expected).max() / scale)
