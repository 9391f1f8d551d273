"""Host tensors of a checkpoint -> one device weight per layer kind."""

from collections.abc import Sequence
from typing import Any

import jax

from onecat_jax.custom_calls.linear.checks import check_tensor
from onecat_jax.custom_calls.linear.routes import LinearRoute
from onecat_jax.custom_calls.linear.stacks import DenseStack, FP8Stack, INT4Stack, NVFP4Stack, Stack
from onecat_jax.custom_calls.linear.weights import (
    DenseTensor,
    FP8Tensor,
    HostMatrix,
    INT4Tensor,
    Linear,
    NVFP4Tensor,
)

Row = Sequence[HostMatrix]  # siblings of one layer, concatenated along N

_STACKS: dict[type, type[Stack]] = {
    DenseTensor: DenseStack,
    NVFP4Tensor: NVFP4Stack,
    FP8Tensor: FP8Stack,
    INT4Tensor: INT4Stack,
}


def build_linear(
    layers: Sequence[Row], *, route: LinearRoute, dtype: Any, device: jax.Device | None = None
) -> Linear:
    """Fuses, stacks, packs and places the weights of one layer kind.

    Scales of another granularity or dtype are expanded to what holds all of them exactly: FP8 scales of tensors to scales of
    rows, these to blocks of 128 k; INT4 groups to their greatest common divisor, scales of two dtypes to float32.

    Args:
      layers: outer, the layers of the stack, each asked for once, in order, and let go before the next; inner, siblings that
        are concatenated along N. One kind throughout.
      route: what the weights are packed for.
      dtype: dtype of the activations; dense weights are stored in it, or in their own (see `dense_dtype`).
      device: where the weight goes; the default device if none is given.

    Raises:
      ValueError: mixed kinds, shapes that differ between layers or contradict each other, INT4 siblings with different orders,
        values that a kind can't have (checks.py).
    """
    stack: Stack | None = None
    kind: type = type(None)
    for at, row in enumerate(layers):
        shape = _fused_shape(row)
        if stack is None:
            kind = type(row[0])
            stack = _STACKS[kind](len(layers), *shape, route, dtype, device)
        stack.check(shape)
        stack.write(at, _all(row, kind))
    if stack is None:
        raise ValueError("a stack needs weights of one kind, found nothing")
    return stack.placed()


def _fused_shape(row: Row) -> tuple[int, int]:
    """Logical (N, K) of siblings concatenated along N."""
    if not row:
        raise ValueError("a stack needs weights of one kind, found nothing")
    shapes = [check_tensor(tensor) for tensor in row]
    ks = {shape[1] for shape in shapes}
    if len(ks) != 1:
        raise ValueError(f"fused siblings need the same K, found {sorted(ks)}")
    return sum(shape[0] for shape in shapes), ks.pop()


def _all(row: Row, kind: type) -> Row:
    kinds = sorted({t.__name__ for t in (kind, *map(type, row))})
    if len(kinds) > 1:
        raise ValueError(f"a stack needs weights of one kind, found {' and '.join(kinds)}")
    return row
