"""Rounds with the host in between: for grammars, which must see the drafts before they can say what is allowed, and for looking
at a round from Python. Draft and verification are the functions that the device loop runs, so tokens are the same.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from onecat_jax.sampling import SamplingState
from onecat_jax.sampling.drafts import Drafts
from onecat_jax.speculation.launch import Launch
from onecat_jax.speculation.params import EngineParams
from onecat_jax.speculation.rounds import Round, RoundRows, draft, verify_commit
from onecat_jax.state import CacheState
from onecat_jax.steps import StepOptions

# What may follow each fed row, bool [B, Q, V] of the whole vocabulary; None for no restriction in this round.
Masks = Callable[[RoundRows, Drafts], np.ndarray | None]
# Runs a step under a name: `Programs.call` compiled, `plainly` as Python.
Call = Callable[[tuple, Callable, tuple], Any]


def plainly(key: tuple, step: Callable, args: tuple) -> Any:
    """Runs a step as Python, operation by operation: for debugging, on one device."""
    del key
    return step(*args)


def stepped(
    call: Call,
    params: EngineParams,
    state: CacheState,
    rows: RoundRows,
    sampling: SamplingState,
    banned: Array,
    limit: int,
    options: StepOptions,
    *,
    width: int,
    k: int | None,
    masks: Masks = lambda rows, drafts: None,
) -> tuple[CacheState, Launch]:
    """`launch`, one round at a time: two dispatches and two reads per round.

    Args:
      call: how steps are run.
      params, state, rows, sampling, banned, options, width, k: as `launch`.
      limit: rounds at most.
      masks: called with each round's rows and drafts.

    Returns:
      the state, and what the rounds gave: every array with a leading axis of the rounds that ran (at least one).
    """
    key = (rows.token.shape[0], width)
    results: list[Round] = []
    while True:
        state, drafts = call(
            ("draft", *key),
            partial(_draft, options=options, width=width),
            (params, state, rows, sampling, banned),
        )
        allowed = masks(rows, drafts)
        verify = partial(_verify, options=options, k=k)
        state, (rows, result) = call(
            ("verify", *key, k, allowed is not None),
            verify,
            (params, state, rows, drafts, sampling, banned, allowed),
        )
        results.append(result)
        if len(results) >= limit or not np.any(rows.running):
            break
    return state, Launch(rows, jax.tree.map(lambda *rounds: jnp.stack(rounds), *results))


def _draft(
    params: EngineParams,
    state: CacheState,
    rows: RoundRows,
    sampling: SamplingState,
    banned: Array,
    *,
    options: StepOptions,
    width: int,
) -> tuple[CacheState, Drafts]:
    own = options.shards.own(banned)
    return draft(params, state, rows, sampling, own, options, width=width)


def _verify(
    params: EngineParams,
    state: CacheState,
    rows: RoundRows,
    drafts: Drafts,
    sampling: SamplingState,
    banned: Array,
    allowed: Array | None,
    *,
    options: StepOptions,
    k: int | None,
) -> tuple[CacheState, tuple[RoundRows, Round]]:
    own = options.shards.own
    state, rows, result = verify_commit(
        params,
        state,
        rows,
        drafts,
        sampling,
        own(banned),
        options,
        k=k,
        allowed=None if allowed is None else own(allowed),
    )
    return state, (rows, result)
