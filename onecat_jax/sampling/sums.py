"""A sum whose rounding doesn't depend on the batch size.

XLA is free to choose the order of a reduction by shape. Here the order is spelled out as elementwise additions, so that a row
gives the same bits alone and in any batch.
"""

import jax.numpy as jnp
from jax import Array


def tree_sum(x: Array) -> Array:
    """Sum over the last axis by repeated halving: [..., N] -> [...]. Never falls when an element grows."""
    length = x.shape[-1]
    width = 1 << max(length - 1, 0).bit_length()
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - length)])
    while width > 1:
        width //= 2
        x = x[..., :width] + x[..., width:]
    return x[..., 0]
