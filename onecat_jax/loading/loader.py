"""Turns a checkpoint into host tensors under canonical names: views of files, scales checked."""

from collections.abc import Mapping

import ml_dtypes
import numpy as np

from onecat_jax.custom_calls.linear.weights import DenseTensor, NVFP4Tensor
from onecat_jax.loading.checkpoint import Checkpoint
from onecat_jax.loading.formats import Mismatch, Source
from onecat_jax.loading.sources import find_sources, refuse
from onecat_jax.models.spec import TensorSpecs
from onecat_jax.models.tensors import HostTensor

_NVFP4_RANGE = 448.0 * 6.0  # largest E4M3 times largest E2M1
_NAN = 0x7F


def load_tensors(checkpoint: Checkpoint, specs: TensorSpecs) -> dict[str, HostTensor]:
    """Host tensors by canonical name: linears as DenseTensor or NVFP4Tensor, the rest as arrays.

    Arrays have their file dtype. They are read-only views; of an NVFP4 tensor the scales are read
    here, of all else nothing.

    Raises:
      CheckpointError: see `find_sources`; or a block scale is negative or NaN, or a global
        scale isn't positive and finite.
    """
    return host_tensors(checkpoint, find_sources(checkpoint, specs))


def host_tensors(checkpoint: Checkpoint, sources: Mapping[str, Source]) -> dict[str, HostTensor]:
    """`load_tensors` where the sources are already found."""
    tensors: dict[str, HostTensor] = {}
    problems: list[str] = []
    for name, source in sources.items():
        try:
            tensors[name] = host_tensor(checkpoint, source)
        except Mismatch as mismatch:
            problems.append(str(mismatch))
    refuse(checkpoint, "hold bad scales", problems)
    return tensors


def host_tensor(checkpoint: Checkpoint, source: Source) -> HostTensor:
    """One tensor.

    Raises:
      Mismatch: a block scale is negative or NaN, or a global scale isn't positive and finite.
    """
    weight = checkpoint.array(source.weight)
    if source.format == "nvfp4":
        scales = checkpoint.array(source.scale).view(np.uint8)
        check_block_scales(source.scale, scales)
        return NVFP4Tensor(weight, scales, _multiplier(checkpoint, source))
    return DenseTensor(weight) if source.spec.kind == "linear" else weight


def check_block_scales(name: str, scales: np.ndarray) -> None:
    """scales: bits of E4M3 [N, K/16]. Good ones are 0x00 to 0x7e, 0x7f and 0xff are NaN.

    Raises:
      Mismatch: there are others.
    """
    if scales.size and scales.max() >= _NAN:
        bad = scales >= _NAN
        row, block = np.argwhere(bad)[0]
        kind = "NaN" if scales[row, block] & _NAN == _NAN else "negative"
        raise Mismatch(
            f"{name} holds {int(bad.sum())} block scales that are NaN or negative, the first is "
            f"{kind} (0x{scales[row, block]:02x}) at row {row}, block {block}"
        )


def _multiplier(checkpoint: Checkpoint, source: Source) -> np.float32:
    stored = np.float32(checkpoint.array(source.global_scale).reshape(()))
    if not (np.isfinite(stored) and stored > 0):
        raise Mismatch(f"{source.global_scale} is {stored}; a finite number above zero is needed")
    multiplier = multiplier_of_divisor(stored) if source.divides else stored
    if not (np.isfinite(multiplier) and multiplier > 0):
        raise Mismatch(f"{source.global_scale} is {stored}, whose inverse isn't a finite float32")
    return multiplier


def multiplier_of_divisor(divisor: np.float32) -> np.float32:
    """The multiplier t = amax / 2688 that a stored divisor g = 1 / t was made from.

    Both g and t are rounded to float32, so 1 / g misses t by one ulp in about a quarter of the
    cases. The amax of BF16 weights is a BF16 value, though, and 2688 / g is far closer to it than
    to any other BF16 value: rounding there gives it back, and with it t, bit for bit. The guess
    counts only if g is its correctly rounded inverse; else 1 / g stands.
    """
    g = np.float64(divisor)
    with np.errstate(over="ignore", under="ignore"):
        amax = np.float64(np.float32(_NVFP4_RANGE / g).astype(ml_dtypes.bfloat16))
        plain = np.float32(1.0 / g)
        if not (np.isfinite(amax) and amax > 0):
            return plain
        guess = np.float32(amax / _NVFP4_RANGE)
        made_from_it = guess > 0 and np.float32(1.0 / np.float64(guess)) == divisor
    return guess if made_from_it else plain
