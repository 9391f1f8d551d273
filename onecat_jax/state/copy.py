"""What one sequence keeps in its slot, copied into the slot of another."""

from dataclasses import replace

from jax import Array, lax

from onecat_jax.state.caches import CacheState
from onecat_jax.state.history import TokenHistory


def copy_slot(state: CacheState, pair: Array) -> CacheState:
    """GDN states and windows of all layers and the token history of slot pair[0], put in slot pair[1] too, in place.

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
    return replace(state, gdn=gdn, history=TokenHistory(_copy_rows(counts, pair, counts.shape[0])))


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
