"""Exact acceptance of one chain of drafts per row: what is emitted has the distribution that `sample` draws from.

Draft d, drawn from q, is accepted with probability min(1, p(d) / q(d)), p being the target distribution after penalties,
biases, masks, temperature and truncation. At the first rejection the token comes from max(p - q, 0), renormalised; after the
last draft from p (Leviathan et al., "Fast inference from transformers via speculative decoding", 2023, and Chen et al.,
"Accelerating large language model decoding with speculative sampling", 2023). A greedy row is the case of a p with one token:
drafts are accepted while they are the argmax, and the next argmax follows.

Random words are those of the token's own absolute position: one for the decision on the draft, and the noise of `sample` for
the token that ends the chain. So a row without drafts gets the token of `sample`.

Work follows need as in `draw`: greedy batches look for argmaxes only, heads of 64 tokens do where top-k and top-p leave no
more, and only the row at which the chain ends is drawn from. What decides a row depends on that row alone: its mass is added
up over the head or over the vocabulary as its own settings ask, never as its neighbours' do.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.sampling.adjust import adjusted_logits
from onecat_jax.sampling.counts import RoundCounts, SlotCounts
from onecat_jax.sampling.cut import Head, find_head, finish_cut, needs_order
from onecat_jax.sampling.drafts import Drafts, log_q_at
from onecat_jax.sampling.draw import healthy_rows, pick, pick_head
from onecat_jax.sampling.randomness import STREAM_ACCEPT, STREAM_TARGET, token_words, uniform
from onecat_jax.sampling.residual import head_residual, row_residual
from onecat_jax.sampling.search import Cut, apply_cut
from onecat_jax.sampling.state import SamplingState
from onecat_jax.sampling.sums import tree_sum
from onecat_jax.sampling.transforms import scaled_logits
from onecat_jax.sampling.vocabulary import Vocabulary
from onecat_jax.sharding import WHOLE, Shards


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Accepted:
    """What a round emits: the first `count` drafts and then `token`. The same on all ranks."""

    count: Array  # [B] int32 drafts accepted
    token: Array  # [B] int32 the token after them
    healthy: Array  # [B] bool; False = the logits after the accepted drafts are bad and `token` means nothing


class _Chain(NamedTuple):
    """The rows of a batch laid out one after the other: N = B * Q, row i of request b at b * Q + i."""

    state: SamplingState  # [N]
    positions: Array  # [N] int32 of the token that the row predicts
    draft: Array  # [N] int32 the draft at that position, -1 where none is meant
    log_q: Array  # [N] float32 its probability under its proposal, -inf where it has none
    wanted: Array  # [N] bool rows that the chain may reach


class _Target(NamedTuple):
    """Target distributions of rows."""

    logits: Array  # [N, V] float32 after temperature and min-p
    head: Head
    active: Array  # [N] bool: top-k or top-p apply
    cut: Cut
    log_mass: Array  # [N] float32 log of the sum of exp(logits) over kept tokens; only where there is a draft to decide

    @property
    def short(self) -> Array:
        """Rows [N] whose kept tokens are all in their head."""
        return self.active & self.head.resolved


def accept(
    logits: Array,
    drafts: Drafts,
    sampling: SamplingState,
    position: Array,
    *,
    fed: Array,
    vocab_size: int,
    banned: Array | None = None,
    allowed: Array | None = None,
    history: SlotCounts | None = None,
    shards: Shards = WHOLE,
) -> Accepted:
    """Decides on the drafts of every row and picks the token after the accepted ones.

    Args:
      logits: [B, Q, V], any float type; computed in float32. Row i follows token i of `fed`. Under tensor parallelism the
        rank's slice of V, as in `banned`, `allowed` and `history`.
      drafts: Q - 1 places.
      sampling: settings of the rows.
      position: int32 [B], absolute position of the bonus token, the first one fed.
      fed: int32 [B, Q], the bonus token and the drafts, as fed to the model.
      vocab_size: ids from here on (of the whole vocabulary) are padding and never emitted.
      banned: bool [V], True = never emitted.
      allowed: bool [B, Q, V], False = not emitted after that row (a grammar).
      history: tokens before the bonus token; None = no row has penalties.
      shards: the ranks that share V.
    """
    vocabulary = Vocabulary(shards)
    with jax.named_scope("accept"):
        batch, width, size = logits.shape
        flat = logits.reshape(batch * width, size)
        chain = _chain(drafts, sampling, position)
        x = adjusted_logits(
            flat,
            chain.state,
            chain.positions,
            vocab_size=vocab_size,
            banned=banned,
            allowed=None if allowed is None else allowed.reshape(flat.shape),
            history=_round_counts(history, flat, fed, sampling, position, vocabulary),
            vocabulary=vocabulary,
        )
        largest, best = vocabulary.first_argmax(x)
        healthy = healthy_rows(flat, vocab_size=vocab_size, shards=shards) & (largest > -jnp.inf)
        matched = healthy & (best == chain.draft)

        def greedy() -> tuple[Array, Array]:
            end = _chain_end(matched, batch)
            return end, best[end]

        def mixed() -> tuple[Array, Array]:
            scaled = scaled_logits(x, largest, chain.state.temperature, chain.state.min_p)
            target = _target(scaled, chain, vocabulary)
            kept = jnp.where(
                _drawn(chain.state),
                healthy & _passed(target, chain, vocab_size, vocabulary),
                matched,
            )
            end = _chain_end(kept, batch)
            token = _draw_end(target, chain, drafts, end, vocabulary)
            return end, jnp.where(_drawn(sampling), token, best[end])

        end, token = lax.cond(jnp.any(_drawn(sampling)), mixed, greedy)
        return Accepted(end % width, token, healthy[end])


def _drawn(state: SamplingState) -> Array:
    return state.temperature > 0


def _chain(drafts: Drafts, sampling: SamplingState, position: Array) -> _Chain:
    width = drafts.tokens.shape[1] + 1
    step = jnp.arange(width, dtype=jnp.int32)
    log_q = log_q_at(drafts.tokens[..., None], drafts.ids, drafts.log_q)[..., 0]
    end = ((0, 0), (0, 1))
    draft = jnp.where(
        step < drafts.count[:, None], jnp.pad(drafts.tokens, end, constant_values=-1), -1
    )
    return _Chain(
        state=jax.tree.map(lambda leaf: jnp.repeat(leaf, width, axis=0), sampling),
        positions=(position[:, None] + 1 + step).reshape(-1),
        draft=draft.reshape(-1),
        log_q=jnp.pad(log_q, end, constant_values=-jnp.inf).reshape(-1),
        wanted=(step <= drafts.count[:, None]).reshape(-1),
    )


def _round_counts(
    history: SlotCounts | None,
    flat: Array,
    fed: Array,
    sampling: SamplingState,
    position: Array,
    vocabulary: Vocabulary,
) -> RoundCounts | None:
    if history is None:
        return None
    columns = vocabulary.columns(flat, fed)
    return RoundCounts(history.counts, history.slots, columns, position, sampling.prompt_length)


def _chain_end(kept: Array, batch: int) -> Array:
    """Row [B] of the flat layout at which each chain ends, its first one that keeps no draft: bool [N], False in last rows."""
    kept = kept.reshape(batch, -1)
    width = kept.shape[1]
    step = jnp.arange(width, dtype=jnp.int32)
    end = jnp.min(jnp.where(kept, width - 1, step), axis=1)
    return jnp.arange(batch, dtype=jnp.int32) * width + end


def _target(scaled: Array, chain: _Chain, vocabulary: Vocabulary) -> _Target:
    state, drawn = chain.state, _drawn(chain.state) & chain.wanted
    active = needs_order(state.top_k, state.top_p, vocabulary.size(scaled)) & drawn
    head = find_head(scaled, state.top_k, state.top_p, active, vocabulary)
    cut = finish_cut(scaled, state.top_k, state.top_p, head, active, vocabulary)
    short = active & head.resolved
    rank = jnp.arange(head.values.shape[-1])
    of_head = tree_sum(jnp.where(rank < head.kept[:, None], jnp.exp(head.values), 0.0))
    mass = lax.cond(
        jnp.any(drawn & (chain.draft >= 0) & ~short),
        lambda: vocabulary.total(jnp.exp(apply_cut(scaled, cut, vocabulary))),
        lambda: of_head,
    )
    return _Target(scaled, head, active, cut, jnp.log(jnp.where(short, of_head, mass)))


def _passed(target: _Target, chain: _Chain, vocab_size: int, vocabulary: Vocabulary) -> Array:
    """Rows [N] whose draft is accepted, by the ratio of probabilities."""
    value = vocabulary.value_at(target.logits, chain.draft)
    cut = target.cut
    inside = (value > cut.value) | ((value == cut.value) & (chain.draft <= cut.token))
    exists = (chain.draft >= 0) & (chain.draft < vocab_size)
    log_p = jnp.where(inside & exists, value - target.log_mass, -jnp.inf)
    return _ratio_test(_log_uniform(chain), log_p, chain.log_q)


def _log_uniform(chain: _Chain) -> Array:
    """Log of the number in (0, 1) that decides on each draft, [N]."""
    one = jnp.zeros_like(chain.positions)[:, None]
    return jnp.log(uniform(token_words(chain.state.seed, chain.positions, one, STREAM_ACCEPT)))[
        :, 0
    ]


def _ratio_test(log_u: Array, log_p: Array, log_q: Array) -> Array:
    """u < p / q; a draft that its own proposal doesn't list never passes."""
    return (log_u < log_p - log_q) & (log_q > -jnp.inf)


def _draw_end(
    target: _Target, chain: _Chain, drafts: Drafts, end: Array, vocabulary: Vocabulary
) -> Array:
    """Tokens [B] after the chains, from the rows at which they end; greedy rows get any id."""
    target, chain = jax.tree.map(lambda leaf: leaf[end], (target, chain))
    ids, log_q = _rejected_proposal(drafts, chain, end)
    state, positions, drawn = chain.state, chain.positions, _drawn(chain.state)

    def from_head() -> Array:
        head = head_residual(target.head, target.log_mass, ids, log_q)
        return pick_head(head, state, positions, STREAM_TARGET)

    def from_all() -> Array:
        x = apply_cut(target.logits, target.cut, vocabulary)
        x = row_residual(x, target.log_mass, ids, log_q, vocabulary)
        return pick(x, state, positions, STREAM_TARGET, vocabulary)

    return lax.cond(jnp.all(target.short | ~drawn), from_head, from_all)


def _rejected_proposal(drafts: Drafts, chain: _Chain, end: Array) -> tuple[Array, Array]:
    """Ids and log q [B, U] that the last token of each chain must make up for; nothing where no draft was rejected.

    A draft that its proposal doesn't list counts as no draft. `chain` holds the rows at `end`.
    """
    batch, places = drafts.tokens.shape
    if places == 0:
        return jnp.zeros((batch, 1), jnp.int32), jnp.full((batch, 1), -jnp.inf, jnp.float32)
    rows, place = jnp.arange(batch), jnp.minimum(end % (places + 1), places - 1)
    rejected = (chain.draft >= 0) & (chain.log_q > -jnp.inf)
    log_q = jnp.where(rejected[:, None], drafts.log_q[rows, place], -jnp.inf)
    return drafts.ids[rows, place], log_q
