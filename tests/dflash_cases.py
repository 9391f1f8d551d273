"""Small drafts with seeded weights, and what runs their passes without an engine."""

import json as json_module
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import onecat_jax
from onecat_jax import SamplingParams
from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import Dense, DenseTensor, LinearRoute
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
from onecat_jax.models.qwen3_5 import ForwardOptions, ModelConfig, Params
from onecat_jax.sampling.drafts import Drafts
from onecat_jax.sampling.state import SamplingState, request_row, stack_rows
from onecat_jax.sharding import TP, Placement
from onecat_jax.speculation.dflash import DFlashDrafter
from onecat_jax.speculation.interface import DraftRows
from onecat_jax.speculation.params import EngineParams, engine_specs
from onecat_jax.state import CacheShape, CacheState, DraftState, DraftWindow

TINY = Path(onecat_jax.__file__).parent / "assets" / "tiny"
TARGET_JSON = json_module.loads((TINY / "target" / "config.json").read_text(encoding="utf-8"))
PAGE = 16
LAYERS, WIDTH, WINDOW, MASK, VOCAB = 2, 8, 40, 250, 256
BATCH = 4  # rows of a round
DFLASH1 = {"block_size": WIDTH, "mask_token_id": MASK, "target_layer_ids": [0, 2, 3]}
DFLASH2 = DFLASH1 | {
    "conv_kernel_size": 2,
    "conv_group_size": 16,
    "selector_rank": 8,
    "selector_top_k": 16,
}


def config_json(dflash: Mapping[str, Any] = DFLASH2, **changes: Any) -> dict[str, Any]:
    """A draft of two layers that slide."""
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
    slots: int = 1 + BATCH

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


@dataclass(frozen=True)
class Target:
    """What a drafter uses of a target."""

    embed: np.ndarray  # [V, E]
    head: np.ndarray  # [V, E]
    vocab_size: int = VOCAB

    @staticmethod
    def random(seed: int = 9) -> "Target":
        rng = np.random.default_rng(seed)
        embed, head = (rng.normal(0, s, (VOCAB, 64)).astype(np.float32) for s in (1.0, 0.3))
        return Target(embed, head)

    def placed(self, placement: Placement) -> Params:
        """As parameters without layers, each rank's ids side by side."""
        embed, head = (
            jax.device_put(a.reshape(placement.size, -1, a.shape[1]), placement.sharding(P(TP)))
            for a in (self.embed, self.head)
        )
        return Params(Dense(embed), (), placement.replicate(np.zeros(64, np.float32)), Dense(head))


@dataclass(frozen=True)
class DrafterHarness:
    """A drafter over windows of its own."""

    draft: DraftHarness
    drafter: DFlashDrafter
    params: EngineParams

    @cached_property
    def step(self):
        """Jitted (params, state, rows, sampling, banned) -> Drafts."""
        state = jax.eval_shape(lambda: self._state(self.draft.new_state())).specs(TP)
        step = self.draft.placement.shard_map(
            self._drafts,
            in_specs=(engine_specs(self.params), state, P(), P(), P()),
            out_specs=P(),
        )
        return jax.jit(step)

    def _drafts(self, params, state, rows, sampling, banned):
        banned = self.draft.options.shards.own(banned)
        return self.drafter.draft(params, state, rows, sampling, banned)[0]

    def _state(self, draft: DraftState) -> CacheState:
        """Nothing but the windows counts."""
        empty = CacheShape(
            0, 1, PAGE, self.draft.options.shards.size, 8, 0, 1, 4, 8, 8, 8, 2, VOCAB
        )
        zeros = CacheState.zeros(empty, kv_dtype=jnp.float32, window_dtype=jnp.float32)
        return replace(zeros, draft=draft)

    def round(
        self,
        taps: Sequence[np.ndarray | None],
        tokens: Sequence[int],
        sampling: SamplingState,
        *,
        banned: Sequence[int] = (),
        wanted: Sequence[int] | None = None,
    ) -> Drafts:
        """One round of up to BATCH rows with these contexts [A, S, E]; None is an empty row of the batch."""
        state = self.draft.new_state(poison=np.nan)
        window = state.window
        taps = [*taps, *[None] * (BATCH - len(taps))]
        for slot, rows in enumerate(taps, 1):
            if rows is not None and rows.shape[1]:
                window = self.draft.feed(window, rows, [rows.shape[1]], 128, slot)
        live = np.asarray([rows is not None for rows in taps])
        length = [0 if rows is None else rows.shape[1] for rows in taps]
        tokens = [*tokens, *[0] * (BATCH - len(tokens))]
        asked = DraftRows(
            token=jnp.asarray(tokens, jnp.int32),
            position=jnp.asarray(length, jnp.int32),
            wanted=jnp.asarray(live * self.drafter.drafts if wanted is None else wanted, jnp.int32),
            slots=jnp.asarray(live * np.arange(1, BATCH + 1), jnp.int32),
            table=jnp.zeros((BATCH, 1), jnp.int32),
        )
        mask = jnp.zeros(VOCAB, bool).at[jnp.asarray(banned, jnp.int32)].set(True)
        whole = self._state(replace(state, window=window))
        return jax.tree.map(np.asarray, self.step(self.params, whole, asked, sampling, mask))


def drafter_of(
    weights: Mapping[str, np.ndarray],
    json: Mapping[str, Any],
    target: Target,
    *,
    drafts: int = WIDTH - 1,
    greedy: bool = False,
    ranks: int = 1,
) -> DrafterHarness:
    """A drafter around weights and a target."""
    harness = build(weights, json, ranks=ranks)
    options = harness.options
    model = replace(ModelConfig.from_hf(TARGET_JSON), hidden_size=64, vocab_size=VOCAB)
    forward = ForwardOptions(model, options.dtype, options.policy, options.shards)
    drafter = DFlashDrafter(options, forward, target.vocab_size, drafts, greedy)
    return DrafterHarness(
        harness, drafter, EngineParams(target.placed(harness.placement), harness.params)
    )


@cache
def usual_drafter() -> DrafterHarness:
    """One for all tests that need no other, so that it is compiled once."""
    json = config_json()
    return drafter_of(random_weights(json), json, Target.random())


def sampling_rows(temperature: float) -> SamplingState:
    """BATCH rows with seeds 0, 1, ..."""
    params = SamplingParams(temperature=temperature)
    return stack_rows([request_row(params, (), seed=i, prompt_length=0) for i in range(BATCH)])
