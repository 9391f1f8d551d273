"""Sums whose rounding doesn't depend on the batch size, nor on how long the row is.

XLA is free to choose the order of a reduction by shape. Here the order is fixed by the position in the row alone, so that a row
gives the same bits by itself, in any batch and in a program that looks only at its head.
"""

import jax.numpy as jnp
from jax import Array, lax

_BLOCK = 64


def tree_sum(x: Array) -> Array:
    """Sum over the last axis by repeated halving: [..., N] -> [...]."""
    width = 1 << max(x.shape[-1] - 1, 0).bit_length()
    x = _pad(x, width)
    while width > 1:
        width //= 2
        x = x[..., :width] + x[..., width:]
    return x[..., 0]


def prefix_sum(x: Array) -> Array:
    """Inclusive cumulative sum over the last axis; element i depends on x[..., : i + 1] and on i only.

    Blocks of 64 are scanned, all by the same program whatever the row's length, then the sum of the blocks before is added.
    """
    length = x.shape[-1]
    blocks = -(-length // _BLOCK)
    x = _pad(x, blocks * _BLOCK).reshape(*x.shape[:-1], blocks, _BLOCK)
    x = lax.cumsum(x, axis=x.ndim - 1)
    if blocks > 1:
        totals = prefix_sum(x[..., -1])
        before = jnp.pad(totals[..., :-1], [(0, 0)] * (totals.ndim - 1) + [(1, 0)])
        x = x + before[..., None]
    return x.reshape(*x.shape[:-2], blocks * _BLOCK)[..., :length]


def _pad(x: Array, width: int) -> Array:
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])
