"""The DFlash drafter: a block of masks behind the last token, the likeliest tokens of each row, a walk over them."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
from jax import Array

from onecat_jax.custom_calls.linear import Layer, linear
from onecat_jax.models.dflash import DFlashParams, DraftOptions, block, lattice, write_context
from onecat_jax.models.qwen3_5 import ForwardOptions, logits
from onecat_jax.models.qwen3_5.forward import embed
from onecat_jax.sampling import SamplingState
from onecat_jax.sampling.drafts import Drafts
from onecat_jax.sampling.vocabulary import Vocabulary
from onecat_jax.speculation.interface import Committed, DraftRows
from onecat_jax.speculation.params import EngineParams
from onecat_jax.speculation.selector import walk
from onecat_jax.state import CacheState


@dataclass(frozen=True)
class DFlashDrafter:
    """A `Drafter`; DFlash2 if the draft has a selector, else each row proposes its likeliest token.

    Attributes:
      options: of the draft.
      target: of the model whose embedding and head the draft uses.
      vocab_size: ids from here on are padding of the head and never proposed.
      drafts: K, at most block_size - 1. The block is as wide as the checkpoint's whatever K is.
      greedy: propose the best path for rows with a temperature too, as a point mass.
    """

    options: DraftOptions
    target: ForwardOptions
    vocab_size: int
    drafts: int
    greedy: bool = False

    def __post_init__(self) -> None:
        most = self.options.config.block_size - 1
        if not 1 <= self.drafts <= most:
            raise ValueError(
                f"a block of this draft has 1 to {most} drafts, asked for {self.drafts}"
            )

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers of the target whose outputs `commit` wants."""
        return self.options.config.target_layer_ids

    def draft(
        self,
        params: EngineParams,
        state: CacheState,
        rows: DraftRows,
        sampling: SamplingState,
        banned: Array,
    ) -> tuple[Drafts, CacheState]:
        """See `Drafter`. Keys and values of the block lie behind the context until a commit overwrites them."""
        draft, live = _draft_of(params), rows.wanted > 0
        assert state.draft.window is not None, "the state of a DFlash drafter has a window"
        x = self._block_rows(params, rows.token, live)
        hidden, window = block(
            draft, state.draft.window, x, rows.position, live, rows.slots, self.options
        )
        hidden = hidden[:, 1 : 1 + self.drafts]
        ids, values = self._candidates(params, hidden, banned)
        scores, greedy = values[:, :, None], True
        if draft.selector is not None:
            scores = lattice(draft, hidden, ids, values, rows.token, self.options)
            greedy = self.greedy
        drafts = walk(scores, ids, rows.position, rows.wanted, sampling, greedy=greedy)
        return drafts, replace(state, draft=state.draft.with_window(window.kv))

    def commit(self, params: EngineParams, state: CacheState, rows: Committed) -> CacheState:
        """See `Drafter`."""
        assert state.draft.window is not None, "the state of a DFlash drafter has a window"
        assert rows.taps is not None, "a DFlash drafter asks for taps"
        window = write_context(
            _draft_of(params),
            state.draft.window,
            rows.taps,
            rows.start,
            rows.count,
            rows.slots,
            self.options,
        )
        return replace(state, draft=state.draft.with_window(window.kv))

    def _block_rows(self, params: EngineParams, token: Array, live: Array) -> Array:
        """Embedded rows [B, block_size, E] float32: the last token, then masks."""
        config, draft = self.options.config, _draft_of(params)
        assert config.mask_token_id is not None, "check_target refuses a draft without one"
        masks = jnp.full((token.shape[0], config.block_size - 1), config.mask_token_id, jnp.int32)
        tokens = jnp.concatenate([token[:, None], masks], axis=1)
        real = jnp.broadcast_to(live[:, None], tokens.shape)
        x = embed(params.target.embed, tokens, real, self.options.shards, self.options.policy)
        if draft.mask_embedding is not None:
            x = x.at[:, 1:].set(jnp.where(live[:, None, None], draft.mask_embedding, 0.0))
        return x * config.input_embedding_scale

    def _candidates(
        self, params: EngineParams, hidden: Array, banned: Array
    ) -> tuple[Array, Array]:
        """Ids int32 and logits float32 [B, K, U] of the likeliest tokens that may be proposed, -inf where there are fewer."""
        config = self.options.config
        x = self._logits(params, hidden)
        batch, steps, width = x.shape
        x = jnp.where(self._blocked(params, banned, width) | jnp.isnan(x), -jnp.inf, x)
        vocabulary = Vocabulary(self.options.shards)
        values, ids = vocabulary.top(x.reshape(batch * steps, width), config.candidates)
        target_ids = _draft_of(params).target_ids
        ids = ids if target_ids is None else target_ids[ids]
        shape = (batch, steps, config.candidates)
        return ids.reshape(shape), self._shaped(values).reshape(shape)

    def _logits(self, params: EngineParams, hidden: Array) -> Array:
        """[B, K, draft ids], the rank's slice."""
        head = _draft_of(params).head
        if head is None:
            return logits(params.target, hidden, self.target)
        h = hidden.astype(self.options.compute_dtype)
        return linear(h, head, Layer(0), out_dtype=jnp.float32, policy=self.options.policy)

    def _blocked(self, params: EngineParams, banned: Array, width: int) -> Array:
        """Columns [draft ids] that are never proposed, the rank's slice."""
        shards, target_ids = self.options.shards, _draft_of(params).target_ids
        if target_ids is not None:
            mine = shards.own(target_ids)
            return shards.concatenate(banned)[mine] | (mine >= self.vocab_size)
        return banned | (shards.rank() * width + jnp.arange(width) >= self.vocab_size)

    def _shaped(self, values: Array) -> Array:
        """What the checkpoint does to logits; it never changes their order."""
        config = self.options.config
        values = values * config.output_multiplier
        if (cap := config.final_logit_softcapping) > 0:
            values = jnp.where(values > -jnp.inf, cap * jnp.tanh(values / cap), values)
        return values


def _draft_of(params: EngineParams) -> DFlashParams:
    assert params.draft is not None, "the parameters of a DFlash drafter hold a draft"
    return params.draft
