"""Small drafts with seeded weights, and what runs their passes without an engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import DenseTensor, LinearRoute
from onecat_jax.models.dflash import (
    DFlashConfig,
    DFlashParams,
    DraftOptions,
    block,
    build_draft,
    draft_specs,
    tensor_specs,
    write_context,
)
from onecat_jax.sharding import TP, Placement
from onecat_jax.state import DraftState, DraftWindow

PAGE = 16
LAYERS, WIDTH, WINDOW, MASK, VOCAB = 3, 8, 40, 250, 256
DFLASH1 = {"block_size": WIDTH, "mask_token_id": MASK, "target_layer_ids": [0, 2, 3]}
DFLASH2 = DFLASH1 | {
    "conv_kernel_size": 2,
    "conv_group_size": 16,
    "selector_rank": 8,
    "selector_top_k": 16,
}


def config_json(dflash: Mapping[str, Any] = DFLASH2, **changes: Any) -> dict[str, Any]:
    """A draft of three layers that slide."""
    return {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "qwen3",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "layer_types": ["sliding_attention"] * LAYERS,
        "sliding_window": WINDOW,
        "is_causal": False,
        "num_target_layers": 4,
        "vocab_size": VOCAB,
        "dflash_config": dict(dflash),
    } | changes


def random_weights(json: Mapping[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Every tensor a checkpoint must hold, float32: norms around 1, rows that keep their input's size."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, spec in tensor_specs(DFlashConfig.from_hf(json)).items():
        if not spec.required or spec.kind == "index":
            continue
        scale = spec.shape[-1] ** -0.5 if spec.kind == "linear" else 0.3
        value = rng.normal(0, scale, spec.shape)
        value += 1.0 if name.endswith(("norm.weight", "base_kernel")) else 0.0
        weights[name] = value.astype(np.float32)
    return weights


def host_tensors(weights: Mapping[str, np.ndarray], config: DFlashConfig) -> dict[str, Any]:
    """What the loader hands to `build_draft`."""
    specs = tensor_specs(config)
    return {n: DenseTensor(w) if specs[n].kind == "linear" else w for n, w in weights.items()}


@dataclass(frozen=True)
class DraftHarness:
    """One draft and the windows of `slots - 1` sequences of up to `capacity` tokens."""

    params: DFlashParams
    options: DraftOptions
    placement: Placement
    slots: int = 4

    def new_state(self, poison: float = 0.0) -> DraftState:
        """Empty windows; `poison` fills them as earlier users of the memory would."""
        local, dtype = self.options.local, self.options.dtype
        shape = local.draft_shape(page_size=PAGE, max_len=self.options.max_len, kv_dtype=dtype)
        zeros = partial(shape.zeros, self.slots)
        specs = jax.eval_shape(zeros).specs(TP)
        state = jax.jit(self.placement.shard_map(zeros, in_specs=(), out_specs=specs))()
        return jax.tree.map(lambda x: x + jnp.asarray(poison, x.dtype), state)

    @cached_property
    def context(self):
        """Jitted (params, window, taps, start, count, slots) -> window."""
        specs = jax.eval_shape(self.new_state).specs(TP).window
        step = self.placement.shard_map(
            partial(write_context, options=self.options),
            in_specs=(draft_specs(self.params), specs, P(), P(), P(), P()),
            out_specs=specs,
        )
        return jax.jit(step)

    @cached_property
    def block(self):
        """Jitted (params, window, x, position, live, slots) -> (hidden, window)."""
        specs = jax.eval_shape(self.new_state).specs(TP).window
        step = self.placement.shard_map(
            partial(block, options=self.options),
            in_specs=(draft_specs(self.params), specs, P(), P(), P(), P()),
            out_specs=(P(), specs),
        )
        return jax.jit(step)

    def feed(
        self, window: DraftWindow, taps: np.ndarray, chunks: list[int], width: int, slot: int = 1
    ) -> DraftWindow:
        """Writes rows taps [A, S, E] of one sequence in pieces of these lengths, each padded to `width` beside an empty row."""
        start = 0
        for size in chunks:
            padded = np.zeros((taps.shape[0], 2, width, taps.shape[2]), np.float32)
            padded[:, 0, :size] = taps[:, start : start + size]
            where = (jnp.asarray([start, 0]), jnp.asarray([size, 0]), jnp.asarray([slot, 0]))
            window = self.context(self.params, window, jnp.asarray(padded), *where)
            start += size
        return window

    def run(self, window: DraftWindow, x: np.ndarray, position: int, slot: int = 1) -> np.ndarray:
        """One block [Q, E] beside an empty row: its rows after the last norm."""
        rows = jnp.asarray(np.stack([x, np.zeros_like(x)]), jnp.float32)
        where = (jnp.asarray([position, 0]), jnp.asarray([True, False]), jnp.asarray([slot, 0]))
        return np.asarray(self.block(self.params, window, rows, *where)[0][0])


def build(
    weights: Mapping[str, np.ndarray],
    json: Mapping[str, Any],
    *,
    max_len: int = 256,
    dtype: str = "float32",
    policy: Policy | None = None,
    ranks: int = 1,
) -> DraftHarness:
    """A harness around weights, split over so many devices."""
    config = DFlashConfig.from_hf(json)
    policy, placement = policy or Policy(), Placement.of(ranks)
    params = build_draft(
        host_tensors(weights, config),
        config,
        route=LinearRoute(policy),
        dtype=dtype,
        placement=placement,
    )
    options = DraftOptions(config, dtype, policy, placement.shards, max_len)
    return DraftHarness(params, options, placement)
