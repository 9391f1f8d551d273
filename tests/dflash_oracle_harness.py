"""A draft of the goldens behind a stand-in target: its passes and its drafter, over the ranks of a placement, no engine."""

from dataclasses import dataclass, replace
from functools import cached_property, partial

import dflash_oracle_weights as dw
import jax
import jax.numpy as jnp
import model_harness
import numpy as np
import oracle_weights as ow
from dflash_cases import host_tensors
from dflash_oracle_cases import DraftCase
from jax import Array
from jax.sharding import PartitionSpec as P

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import LinearRoute
from onecat_jax.device_state import empty_state
from onecat_jax.models.dflash import (
    DFlashConfig,
    DraftOptions,
    block,
    build_draft,
    lattice,
)
from onecat_jax.sampling import SamplingState
from onecat_jax.sampling.drafts import Drafts
from onecat_jax.sharding import TP
from onecat_jax.speculation.dflash import DFlashDrafter
from onecat_jax.speculation.interface import Committed, DraftRows
from onecat_jax.speculation.params import EngineParams, engine_specs
from onecat_jax.state import CacheState

PAGE = 16
SLOT, CAPACITY = 2, 128
_POISON = 1e4  # what the windows held before


@dataclass(frozen=True)
class Drafting:
    """One case on so many ranks. Batches have two rows, of which the second is empty; the sequence owns slot SLOT."""

    case: DraftCase
    params: EngineParams
    drafter: DFlashDrafter
    harness: model_harness.Harness

    @property
    def options(self) -> DraftOptions:
        return self.drafter.options

    def _mapped(self, function, in_specs, out_specs):
        return jax.jit(self.harness.placement.shard_map(function, in_specs, out_specs))

    @cached_property
    def _specs(self) -> tuple[EngineParams, CacheState]:
        return engine_specs(self.params), jax.eval_shape(self.new_state).specs(TP)

    def new_state(self) -> CacheState:
        """Windows full of another sequence's numbers."""
        local, dtype = self.options.local, jnp.dtype(self.options.dtype)
        shape = self.harness.options.local.cache_shape(pages=4, page_size=PAGE, slots=3)
        draft = local.draft_shape(
            page_size=PAGE, max_len=self.options.max_len, kv_dtype=self.options.dtype
        )
        state = empty_state(
            self.harness.placement, shape, kv_dtype=dtype, window_dtype=dtype, draft=draft
        )
        return replace(state, draft=jax.tree.map(lambda x: x + _POISON, state.draft))

    @cached_property
    def _commit(self):
        params, state = self._specs
        return self._mapped(self.drafter.commit, (params, state, P()), state)

    def fed(self, taps: np.ndarray, sizes: list[int], width: int = 48) -> CacheState:
        """The state after rows taps [A, T, E] in pieces of these lengths, by the drafter's commit."""
        state, start = self.new_state(), 0
        tokens = jnp.zeros((2, width), jnp.int32)
        for size in sizes:
            padded = np.zeros((taps.shape[0], 2, width, taps.shape[2]), np.float32)
            padded[:, 0, :size] = taps[:, start : start + size]
            rows = Committed(
                tokens=tokens,
                next_tokens=tokens,
                hidden=jnp.zeros((2, width, taps.shape[2])),
                taps=jnp.asarray(padded),
                start=jnp.asarray([start, 0], jnp.int32),
                count=jnp.asarray([size, 0], jnp.int32),
                slots=jnp.asarray([SLOT, 0], jnp.int32),
                table=jnp.zeros((2, 1), jnp.int32),
            )
            state = self._commit(self.params, state, rows)
            start += size
        return state

    def context(self, state: CacheState, length: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Keys and values [layers, T, Hkv, D] of the last positions below `length` that a ring holds; the first of them."""
        window = state.draft.window
        first = max(length - window.tokens, 0)
        at = np.arange(first, length)
        pages = SLOT * window.ring + at // PAGE % window.ring
        layers = np.arange(self.options.config.num_hidden_layers)[:, None] * window.kv.pages
        k, v = (np.asarray(x)[layers + pages, at % PAGE] for x in (window.kv.k, window.kv.v))
        return k, v, first

    @cached_property
    def _block(self):
        params, state = self._specs
        run = partial(block, options=self.options)
        specs = (params.draft, state.draft.window, P(), P(), P(), P())
        return self._mapped(run, specs, (P(), state.draft.window))

    def rows(self, state: CacheState, embedded: np.ndarray, position: int) -> np.ndarray:
        """Hidden rows [Q, E] of one block."""
        x = jnp.asarray(np.stack([embedded, np.zeros_like(embedded)]), jnp.float32)
        where = (jnp.asarray([position, 0], jnp.int32), jnp.asarray([True, False]))
        slots = jnp.asarray([SLOT, 0], jnp.int32)
        return np.asarray(
            self._block(self.params.draft, state.draft.window, x, *where, slots)[0][0]
        )

    @cached_property
    def _lattice(self):
        params, _ = self._specs
        run = partial(lattice, options=self.options)
        return self._mapped(run, (params.draft, P(), P(), P(), P()), P())

    def scores(
        self, hidden: np.ndarray, ids: np.ndarray, values: np.ndarray, anchor: int
    ) -> np.ndarray:
        """Lattice [K, U, U] of given rows and candidates."""
        both = [jnp.asarray(np.stack([x, x])) for x in (hidden, ids, values)]
        anchors = jnp.full(2, anchor, jnp.int32)
        return np.asarray(self._lattice(self.params.draft, *both, anchors)[0])

    @cached_property
    def _draft(self):
        params, state = self._specs
        specs = (params, state, P(), P(), P(TP))
        return self._mapped(self.drafter.draft, specs, (P(), state))

    def draft(
        self, state: CacheState, anchor: int, position: int, sampling: SamplingState
    ) -> Drafts:
        """One chain behind the anchor; fields without the batch axis."""
        rows = DraftRows(
            token=jnp.asarray([anchor, 0], jnp.int32),
            position=jnp.asarray([position, 0], jnp.int32),
            wanted=jnp.asarray([self.drafter.drafts, 0], jnp.int32),
            slots=jnp.asarray([SLOT, 0], jnp.int32),
            table=jnp.zeros((2, 1), jnp.int32),
        )
        banned = jnp.zeros(self.options.config.vocab_size, bool)
        drafts, _ = self._draft(self.params, state, rows, sampling, banned)
        return jax.tree.map(lambda x: np.asarray(x[0]), drafts)


def _target(case: DraftCase, ranks: int) -> model_harness.Harness:
    """A model of one layer with the stand-in embedding and head: the only parts of it that are used."""
    vocab, hidden = dw.head(case).shape
    base = ow.CASES_BY_NAME["gqa4_all_full"]
    sizes = {"hidden_size": hidden, "vocab_size": vocab, "num_hidden_layers": 1}
    like = replace(base, config={**base.config, **sizes})
    own = {"model.embed_tokens.weight": dw.embeddings(case), "lm_head.weight": dw.head(case)}
    return model_harness.build(ow.weights(like) | own, like.config, capacity=CAPACITY, ranks=ranks)


def build(case: DraftCase, ranks: int) -> Drafting:
    """A case's draft and drafter, all drafts of a block asked for, on so many devices."""
    harness, config = _target(case, ranks), DFlashConfig.from_hf(case.config)
    placement, policy = harness.placement, Policy()
    draft = build_draft(
        host_tensors(dw.weights(case), config),
        config,
        route=LinearRoute(policy),
        dtype="float32",
        placement=placement,
    )
    options = DraftOptions(config, "float32", policy, placement.shards, CAPACITY)
    drafter = DFlashDrafter(options, harness.options, config.vocab_size, config.block_size - 1)
    return Drafting(case, EngineParams(harness.params, draft), drafter, harness)


def embedded_rows(case: DraftCase, token: int) -> np.ndarray:
    """Input rows [Q, E] of a block behind a token, by the fields of the case alone."""
    config, inner, table = case.config, case.config["dflash_config"], dw.embeddings(case)
    size = inner.get("block_size", config.get("block_size"))
    mask = dw.weights(case)["mask_embedding"] if case.mask_row else table[config["vocab_size"] - 1]
    rows = np.stack([table[token], *[mask] * (size - 1)])
    return rows * np.float32(inner.get("input_embedding_scale", 1.0))


def column_of(ids: Array | np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """[K] the place of each step's token among its candidates [K, U]."""
    places = np.asarray(ids) == tokens[:, None]
    if not (places.sum(axis=1) == 1).all():
        raise ValueError(f"tokens {tokens} aren't each one of the candidates {ids}")
    return places.argmax(axis=1)
