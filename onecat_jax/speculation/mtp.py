"""The MTP drafter: the target's own head continues from its hidden rows, one token at a time."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
from jax import Array

from onecat_jax.custom_calls.paged_attention import AttentionRows
from onecat_jax.custom_calls.rows import LiveRows
from onecat_jax.models.qwen3_5 import ForwardOptions, logits
from onecat_jax.models.qwen3_5.forward import embed
from onecat_jax.models.qwen3_5.layers import rotary_angles
from onecat_jax.models.qwen3_5.mtp import mtp_rows
from onecat_jax.models.qwen3_5.weights import MTPParams
from onecat_jax.sampling import SamplingState
from onecat_jax.sampling.drafts import Drafts
from onecat_jax.sampling.vocabulary import Vocabulary
from onecat_jax.speculation.interface import Committed, DraftRows
from onecat_jax.speculation.params import EngineParams
from onecat_jax.speculation.selector import walk
from onecat_jax.state import CacheState

_CANDIDATES = 64  # likeliest tokens that a draft is drawn from


@dataclass(frozen=True)
class MTPDrafter:
    """A `Drafter`. The state keeps the head's output for the last row of each sequence, which the first draft comes from.

    Attributes:
      target: of the model that the head belongs to.
      vocab_size: ids from here on are padding of the head and never proposed.
      drafts: length of a chain, any; layers of the head take turns along it.
      greedy: propose the likeliest token for rows with a temperature too, as a point mass.
    """

    target: ForwardOptions
    vocab_size: int
    drafts: int
    greedy: bool = False

    def __post_init__(self) -> None:
        if self.drafts < 1:
            raise ValueError(f"a chain has at least 1 draft, asked for {self.drafts}")

    @property
    def taps(self) -> tuple[int, ...]:
        """None: `commit` takes the target's final rows."""
        return ()

    def draft(
        self,
        params: EngineParams,
        state: CacheState,
        rows: DraftRows,
        sampling: SamplingState,
        banned: Array,
    ) -> tuple[Drafts, CacheState]:
        """See `Drafter`. Keys and values of drafted rows lie behind the sequence until a commit overwrites them."""
        assert state.draft.hidden is not None, "the state of an MTP drafter has hidden rows"
        live = (rows.wanted > 0) & (rows.position > 0)  # the first token has no row before it
        hidden = state.draft.hidden[rows.slots][:, None]
        chain = [self._pick(params, hidden, rows.position, live, sampling, banned)]
        for step in range(1, self.drafts):
            live = (chain[-1].count > 0) & (step < rows.wanted)
            at = rows.position + step - 1
            token, count = chain[-1].tokens, live.astype(jnp.int32)
            hidden, state = self._rows(
                params, state, token, hidden, at, count, rows.table, turn=step
            )
            chain.append(self._pick(params, hidden, at + 1, live, sampling, banned))
        return _joined(chain), state

    def commit(self, params: EngineParams, state: CacheState, rows: Committed) -> CacheState:
        """See `Drafter`."""
        hidden = state.draft.hidden
        assert hidden is not None, "the state of an MTP drafter has hidden rows"
        out, state = self._rows(
            params, state, rows.next_tokens, rows.hidden, rows.start, rows.count, rows.table, turn=0
        )
        last = jnp.maximum(rows.count - 1, 0)[:, None, None]
        kept = jnp.take_along_axis(out, last, axis=1, mode="clip")[:, 0]
        slots = jnp.where(rows.count > 0, rows.slots, hidden.shape[0])
        hidden = hidden.at[slots].set(kept, mode="drop")
        return replace(state, draft=replace(state.draft, hidden=hidden))

    def _rows(
        self,
        params: EngineParams,
        state: CacheState,
        next_tokens: Array,
        hidden: Array,
        start: Array,
        count: Array,
        table: Array,
        *,
        turn: int,
    ) -> tuple[Array, CacheState]:
        """Runs rows [B, T] through the head: its output [B, T, E] and the state."""
        head, options = _head_of(params), self.target
        offset = jnp.arange(next_tokens.shape[1], dtype=jnp.int32)
        real = offset < count[:, None]
        config = options.config
        rotary = rotary_angles(start[:, None] + offset, config.rotary_dim, config.rope_theta)
        out, kv = mtp_rows(
            head,
            embed(params.target.embed, next_tokens, real, options.shards, options.policy),
            jnp.where(real[..., None], hidden, 0.0),
            state.kv,
            AttentionRows(table, start, count, LiveRows.of(count)),
            rotary,
            options,
            turn % head.layers,
        )
        return out, replace(state, kv=kv)

    def _pick(
        self,
        params: EngineParams,
        hidden: Array,
        position: Array,
        live: Array,
        sampling: SamplingState,
        banned: Array,
    ) -> Drafts:
        """One draft per live row at position + 1, from the head's output [B, 1, E]."""
        vocabulary = Vocabulary(self.target.shards)
        x = logits(params.target, hidden[:, 0], self.target)
        never = banned | (vocabulary.ids(x) >= self.vocab_size) | jnp.isnan(x)
        count = min(_CANDIDATES, vocabulary.size(x))
        values, ids = vocabulary.top(jnp.where(never, -jnp.inf, x), count)
        scores, wanted = values[:, None, None], live.astype(jnp.int32)
        return walk(scores, ids[:, None], position, wanted, sampling, greedy=self.greedy)


def _joined(chain: list[Drafts]) -> Drafts:
    """Chains of one draft, one behind the other. Each is meant only where the one before it is."""
    tokens, ids, log_q = (
        jnp.concatenate([getattr(one, name) for one in chain], axis=1)
        for name in ("tokens", "ids", "log_q")
    )
    return Drafts(tokens, ids, log_q, sum((one.count for one in chain[1:]), chain[0].count))


def _head_of(params: EngineParams) -> MTPParams:
    assert params.target.mtp is not None, "the parameters of an MTP drafter hold the head"
    return params.target.mtp
