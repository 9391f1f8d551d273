"""A sequence that starts where another stands after its prompt: the device program, and what the host tells it.

Full pages of the prompt are shared, so nothing of them is copied; the partly filled last page, the GDN states and windows and
the token history are.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.custom_calls.paged_attention import AttentionRows, write_tokens
from onecat_jax.custom_calls.rows import LiveRows
from onecat_jax.speculation.params import EngineParams
from onecat_jax.state import CacheState, PagedKV, copy_slot
from onecat_jax.steps import StepOptions


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Forks:
    """Pairs (from, to), of which the first `live` are meant. No place is both read and written."""

    live: Array  # [] int32
    slots: Array  # [N, 2] int32
    pages: Array  # [N, 2] int32 the last page of the prompt
    filled: Array  # [N] int32 tokens in that page; 0 where the prompt ends with a full page


def fork(
    params: EngineParams, state: CacheState, forks: Forks, options: StepOptions
) -> tuple[CacheState, None]:
    """The state in which every second of a pair stands where the first does: one of the steps of `Programs`.

    Args:
      params: not read; all programs take the same first operands.
      state: donate it.
      forks: who starts from whom.
      options: static.
    """
    del params

    def one(pair: Array, state: CacheState) -> CacheState:
        state = copy_slot(state, forks.slots[pair])
        kv = _copy_page(state.kv, forks.pages[pair], forks.filled[pair], options)
        return replace(state, kv=kv)

    return lax.fori_loop(0, forks.live, one, state), None


def _copy_page(kv: PagedKV, pair: Array, filled: Array, options: StepOptions) -> PagedKV:
    """The first `filled` tokens of a page of every layer, written as new tokens of a sequence of one page."""
    layers = kv.k.shape[0] // kv.pages
    count = filled[None]
    rows = AttentionRows(pair[1:, None], jnp.zeros(1, jnp.int32), count, LiveRows.of(count))

    def layer(index: Array, kv: PagedKV) -> PagedKV:
        first = index * kv.pages
        k, v = (_read_page(pages, first + pair[0]) for pages in (kv.k, kv.v))
        keys, values = write_tokens(kv.k, kv.v, k, v, rows, first, policy=options.forward.policy)
        return PagedKV(keys, values, kv.pages)

    return lax.fori_loop(0, layers, layer, kv) if layers else kv


def _read_page(pages: Array, page: Array) -> Array:
    """[1, 2 * S, J, D] of which the first half is the page: as many rows as the write takes by whole pages."""
    tokens = lax.optimization_barrier(lax.dynamic_index_in_dim(pages, page))
    if tokens.dtype.itemsize == 1:
        tokens = tokens.astype(jnp.float16)  # holds every float8 number exactly
    return jnp.pad(tokens, ((0, 0), (0, tokens.shape[1]), (0, 0), (0, 0)))
