"""Rounds in one loop on the device, and what a launch of it gives back."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.sampling import SamplingState
from onecat_jax.speculation.params import EngineParams
from onecat_jax.speculation.rounds import Round, RoundRows, draft, verify_commit
from onecat_jax.state import CacheState
from onecat_jax.steps import StepOptions, empty_scores


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Launch:
    """What one launch gives back. R = launch_rounds of the options."""

    rows: RoundRows
    rounds: Round  # every array with a leading R


def launch(
    params: EngineParams,
    state: CacheState,
    rows: RoundRows,
    sampling: SamplingState,
    banned: Array,
    limit: Array,
    options: StepOptions,
    *,
    width: int,
    k: int | None,
) -> tuple[CacheState, Launch]:
    """Up to `limit` rounds in one loop on the device.

    Ends early when every row has ended, or when what the rows want would be better served by rounds of another width.

    Args:
      params, state: donate the state.
      rows: the requests.
      sampling: their settings.
      banned: bool [V] ids never sampled, of the whole vocabulary.
      limit: int32 scalar, at most options.launch_rounds.
      options: static.
      width: Q, static.
      k: None for no scores, else how many of the likeliest tokens come with each token (static).
    """
    banned = options.shards.own(banned)
    results = _no_rounds(options.launch_rounds, rows.token.shape[0], width, k)

    def body(carry: tuple[Array, CacheState, RoundRows, Round]) -> tuple:
        at, state, rows, results = carry
        state, drafts = draft(params, state, rows, sampling, banned, options, width=width)
        state, rows, result = verify_commit(
            params, state, rows, drafts, sampling, banned, options, k=k
        )
        results = jax.tree.map(lambda every, one: every.at[at].set(one), results, result)
        return at + 1, state, rows, results

    def more(carry: tuple[Array, CacheState, RoundRows, Round]) -> Array:
        at, _, rows, _ = carry
        return (at < limit) & jnp.any(rows.running) & suits(rows, width, options)

    carry = (jnp.zeros((), jnp.int32), state, rows, results)
    _, state, rows, results = lax.while_loop(more, body, carry)
    return state, Launch(rows, results)


def suits(rows: RoundRows, width: int, options: StepOptions) -> Array:
    """Whether rounds of this width are the narrowest that hold what some running row wants."""
    narrower = max((other for other in options.widths if other < width), default=0)
    wanted = rows.pace.wanted(options.pacing)
    most = 1 + jnp.max(jnp.where(rows.running, wanted, 0))
    return (most > narrower) & (most <= width) if narrower else most <= width


def _no_rounds(count: int, batch: int, width: int, k: int | None) -> Round:
    zeros = jnp.zeros((count, batch), jnp.int32)
    tokens = jnp.full((count, batch, width), -1, jnp.int32)
    scores = None if k is None else empty_scores((count, batch, width), k)
    return Round(tokens, zeros, zeros, zeros, scores)
