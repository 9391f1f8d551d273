"""What one sequence keeps in its slot, copied into the slot of another."""

from dataclasses import replace

from jax import Array, lax

from onecat_jax.state.caches import CacheState
from onecat_jax.state.drafts import DraftState
from onecat_jax.state.history import TokenHistory


def copy_slot(state: CacheState, pair: Array) -> CacheState:
    """What all layers, the token history and the drafter keep for slot pair[0], put in slot pair[1] too, in place.

    Args:
      state: donate it. Under tensor parallelism a rank copies its own pieces.
      pair: int32 [2], two different slots.
    """
    gdn, counts = state.gdn, state.history.counts
    gdn = replace(
        gdn,
        state=_copy_rows(gdn.state, pair, gdn.slots),
        window=_copy_rows(gdn.window, pair, gdn.slots),
    )
    history = TokenHistory(_copy_rows(counts, pair, counts.shape[0]))
    return replace(state, gdn=gdn, history=history, draft=_copy_draft(state.draft, pair))


def _copy_draft(draft: DraftState, pair: Array) -> DraftState:
    def rows(x: Array | None) -> Array | None:
        return None if x is None else _copy_rows(x, pair, x.shape[0])

    draft = replace(draft, hidden=rows(draft.hidden), tokens=rows(draft.tokens))
    if draft.window is None:
        return draft
    kv, ring = draft.window.kv, draft.window.ring
    k, v = (_copy_rings(pages, pair, kv.pages, ring) for pages in (kv.k, kv.v))
    return draft.with_window(replace(kv, k=k, v=v))


def _copy_rings(pages: Array, pair: Array, per_layer: int, ring: int) -> Array:
    rings = pages.reshape(-1, ring, *pages.shape[1:])
    return _copy_rows(rings, pair, per_layer // ring).reshape(pages.shape)


def _copy_rows(flat: Array, pair: Array, per_layer: int) -> Array:
    """`flat` [layers * per_layer, ...] with row pair[1] of each layer replaced by its row pair[0].

    One layer at a time: what lies between reading and writing is one row, however many layers there are.
    """

    def layer(index: Array, flat: Array) -> Array:
        at = index * per_layer + pair
        # Fused with the write, the read would make the compiler copy the whole array first.
        row = lax.optimization_barrier(lax.dynamic_index_in_dim(flat, at[0]))
        return lax.dynamic_update_index_in_dim(flat, row, at[1], 0)

    layers = flat.shape[0] // per_layer
    return lax.fori_loop(0, layers, layer, flat) if layers else flat
