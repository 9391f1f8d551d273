"""Looks at every value of a checkpoint, which loading leaves unread."""

from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np

from onecat_jax.custom_calls.linear import DenseTensor, FP8Tensor
from onecat_jax.errors import CheckpointError
from onecat_jax.loading.checkpoint import Checkpoint
from onecat_jax.loading.formats import Mismatch, Source, Stored

Finding = tuple[Literal["ok", "warn", "fail"], str]

_CHUNK = 1 << 24  # elements looked at together
_E4M3_NAN = 0x7F  # below the sign
_FLOAT16_MAX = 65504.0
_MAGNITUDES = {
    # dtype: (bits, mask of the magnitude, the first that isn't finite, the first beyond float16)
    "BF16": (np.uint16, 0x7FFF, 0x7F80, 0x4780),
    "F16": (np.uint16, 0x7FFF, 0x7C00, 0x7C00),
    "F32": (np.uint32, 0x7FFFFFFF, 0x7F800000, 0x477FE001),
}


def verify(checkpoint: Checkpoint, sources: Mapping[str, Source]) -> Iterator[tuple[str, Finding]]:
    """Reads tensor after tensor and yields (canonical name, finding).

    Scales that loading refuses (`Source.read`), weights that aren't finite, and arrays of a converted
    checkpoint that can't be read or have another checksum fail. A dense matrix
    with values beyond float16 is a warning: it can't be computed with in float16.
    """
    for name, source in sources.items():
        try:
            tensor = source.read(checkpoint.array)
        except Mismatch as mismatch:
            yield name, ("fail", mismatch.within(checkpoint.tensors))
            continue
        except CheckpointError as error:
            yield name, ("fail", str(error))
            continue
        if isinstance(tensor, FP8Tensor):
            yield name, _fp8(checkpoint, source, tensor)
        elif source.spec.kind == "index":
            yield name, ("ok", "")
        elif isinstance(tensor, DenseTensor | np.ndarray):
            dense = tensor.weight if isinstance(tensor, DenseTensor) else tensor
            yield name, _dense(checkpoint, source, dense)
        else:
            yield name, ("ok", "")


def _fp8(checkpoint: Checkpoint, source: Source, tensor: FP8Tensor) -> Finding:
    flat = tensor.codes.reshape(-1)
    starts = range(0, flat.size, _CHUNK)
    bad = sum(int(((flat[at : at + _CHUNK] & 0x7F) == _E4M3_NAN).sum()) for at in starts)
    if not bad:
        return "ok", ""
    stored = Stored(source.weight, checkpoint.tensors[source.weight])
    return "fail", f"{stored} holds {bad} values that are NaN"


def _dense(checkpoint: Checkpoint, source: Source, weight: np.ndarray) -> Finding:
    info = checkpoint.tensors[source.weight]
    bits, mask, infinite, beyond = _MAGNITUDES[info.dtype]
    flat = weight.reshape(-1).view(bits)
    not_finite = too_large = 0
    for start in range(0, flat.size, _CHUNK):
        magnitude = flat[start : start + _CHUNK] & bits(mask)
        not_finite += int((magnitude >= infinite).sum())
        too_large += int((magnitude >= beyond).sum())
    stored = Stored(source.weight, info)
    if not_finite:
        return "fail", f"{stored} holds {not_finite} values that aren't finite"
    if too_large and source.spec.kind != "vector":
        return "warn", (
            f"{stored} holds {too_large} values beyond {_FLOAT16_MAX:.0f}, the largest float16; "
            "use float32 or bfloat16"
        )
    return "ok", ""
