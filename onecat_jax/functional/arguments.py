"""Checks of what callers pass in, while tracing: shapes, dtypes and sizes, never values."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from onecat_jax.errors import RequestError


def described(x: Array) -> str:
    """dtype and shape, as in messages."""
    return f"{x.dtype.name} {list(x.shape)}"


def array_of(name: str, value: Any) -> Array:
    """Anything that JAX takes for an array.

    Raises:
      RequestError: it doesn't.
    """
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError(
            f"{name} is {type(value).__name__}, which JAX doesn't take for an array: {error}"
        ) from error


def integers(name: str, value: Any, axes: str, shape: tuple[int | None, ...]) -> Array:
    """An integer array of a shape, as int32; what is beyond int32 becomes its end.

    Args:
      name: of the argument.
      value: what was passed.
      axes: the shape in words, such as "[batch]".
      shape: sizes; None takes any size above 0.

    Raises:
      RequestError: another dtype or shape.
    """
    x = array_of(name, _narrow(value, np))  # here, because JAX would wrap NumPy's int64
    fits = x.ndim == len(shape) and all(
        found == size or (size is None and found > 0)
        for found, size in zip(x.shape, shape, strict=False)
    )
    if not jnp.issubdtype(x.dtype, jnp.integer) or not fits:
        sizes = [
            axis if size is None else size for axis, size in zip(axes.split(), shape, strict=True)
        ]
        raise RequestError(
            f"{name} is {described(x)}; integers [{', '.join(map(str, sizes))}] are needed."
        )
    return _narrow(x, jnp)


def _narrow(x: Any, numpy: Any) -> Any:
    """A wider integer array as int32, clipped; anything else as it is."""
    if not isinstance(x, numpy.ndarray) or x.dtype.kind not in "iu" or x.dtype == np.int32:
        return x
    own, narrow = np.iinfo(x.dtype), np.iinfo(np.int32)
    return numpy.clip(x, max(own.min, narrow.min), min(own.max, narrow.max)).astype(np.int32)


def prompts(tokens: Any, lengths: Any, batch: int | None = None) -> tuple[Array, Array]:
    """Right-padded token ids int32 [B, T] and their lengths int32 [B], clipped to 0..T.

    Raises:
      RequestError: another dtype or shape, or not `batch` rows.
    """
    ids = integers("tokens", tokens, "batch width", (batch, None))
    counts = integers("lengths", lengths, "batch", (ids.shape[0],))
    return ids, jnp.clip(counts, 0, ids.shape[1])


def same_batch(batch: int, sampling: Any) -> None:
    """Raises RequestError unless the settings are of `functional.sampling` and have `batch` rows."""
    rows = getattr(sampling, "batch", None)
    if rows is None:
        raise RequestError(
            f"sampling is {type(sampling).__name__}; settings of rows are needed: make them with "
            f"functional.sampling(model, {batch}, ...)."
        )
    if rows != batch:
        raise RequestError(
            f"sampling has {rows} rows, the sequences are {batch}: make it with functional.sampling(model, {batch}, ...)."
        )


def whole(name: str, value: Any, low: int) -> int:
    """A static whole number.

    Raises:
      RequestError: something else, an array included.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise RequestError(
            f"{name} is {value!r}; it decides shapes: a Python int of at least {low} is needed."
        )
    return value
