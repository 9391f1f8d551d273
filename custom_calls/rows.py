"""A device loop over the batch rows that exist.

Plain JAX operators that read and replace a cache handle one batch row at a time: the update is a dynamic slice written in
place, a row costs only what it needs, padding rows cost nothing, and a row's bits can't depend on its neighbours or on the
batch size because each row runs the same program.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

Carry = TypeVar("Carry")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LiveRows:
    """Batch rows with something to do, first in `order`."""

    order: Array  # [B] int32
    live: Array  # [] int32 how many of `order` count

    @staticmethod
    def of(count: Array) -> "LiveRows":
        """Rows whose `count` [B] is above zero."""
        return LiveRows(jnp.argsort(count <= 0, stable=True).astype(jnp.int32), jnp.sum(count > 0))

    def each(self, body: Callable[[Array, Carry], Carry], carry: Carry) -> Carry:
        """Folds body(row, carry) over the live rows."""
        return lax.fori_loop(0, self.live, lambda i, c: body(self.order[i], c), carry)


def row_of(x: Array, row: Array) -> Array:
    """x[row], without the row axis."""
    return lax.dynamic_index_in_dim(x, row, keepdims=False)


def put_row(x: Array, value: Array, row: Array | int) -> Array:
    """x with x[row] = value, in place inside a loop."""
    return lax.dynamic_update_index_in_dim(x, value.astype(x.dtype), row, 0)
