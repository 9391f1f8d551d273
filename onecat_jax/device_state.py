"""An empty state on the devices of an engine."""

from functools import partial

import jax
import jax.numpy as jnp

from onecat_jax.sharding import TP, Placement
from onecat_jax.state import NO_DRAFTS, CacheShape, CacheState, DraftShape


def empty_state(
    placement: Placement,
    shape: CacheShape,
    *,
    kv_dtype: jnp.dtype,
    window_dtype: jnp.dtype,
    draft: DraftShape = NO_DRAFTS,
) -> CacheState:
    """Zeros on every rank.

    Args:
      placement: the ranks.
      shape: sizes on one rank.
      kv_dtype, window_dtype: storage of keys and values, and of the convolution windows.
      draft: sizes of what the drafter keeps on one rank.
    """
    zeros = partial(
        CacheState.zeros, shape, kv_dtype=kv_dtype, window_dtype=window_dtype, draft=draft
    )
    if placement.size == 1:
        with jax.default_device(placement.devices[0]):
            return zeros()
    specs = jax.eval_shape(zeros).specs(TP)
    return jax.jit(placement.shard_map(zeros, in_specs=(), out_specs=specs))()
