"""NVFP4, in the namings of ModelOpt and of compressed-tensors.

  ModelOpt: weight U8 [N, K/2], weight_scale F8_E4M3 [N, K/16], weight_scale_2 F32 (scalar or [1]), a multiplier
  compressed-tensors: weight_packed and weight_scale alike, weight_global_scale F32, a divisor

Codes and scales may have more rows than N, up to whole tiles; those rows must mean zero and are left away.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from onecat_jax.custom_calls.linear import NVFP4Tensor, exact_matrix
from onecat_jax.custom_calls.linear.weights import GROUP
from onecat_jax.loading.formats.parts import Checks, Mismatch, Parts, Shape
from onecat_jax.loading.formats.source import Arrays, Format, Source, Storage
from onecat_jax.models.pieces import NVFP4_GRAIN, Cut, Grain, take
from onecat_jax.models.spec import TensorSpec

_TILES = (1, 8, 16, 32, 64, 128)  # rows that exporters are known to fill up
_RANGE = 448.0 * 6.0  # largest E4M3 times largest E2M1
_NAN = 0x7F


@dataclass(frozen=True)
class NVFP4Source(Source):
    """E2M1 codes under E4M3 block scales and one float32 scale.

    Attributes:
      scale: stored name of the block scales.
      global_scale: stored name of the per-tensor scale.
      divides: True if the global scale divides (compressed-tensors), False if it multiplies (ModelOpt).
    """

    scale: str = ""
    global_scale: str = ""
    divides: bool = False

    format: ClassVar[Format] = "nvfp4"
    kind: ClassVar[type[Any]] = NVFP4Tensor
    storage: ClassVar[Storage] = Storage("nvfp4", group=GROUP)
    grain: ClassVar[Grain | None] = NVFP4_GRAIN

    @property
    def parts(self) -> tuple[str, ...]:
        return self.weight, self.scale, self.global_scale

    def read(self, arrays: Arrays) -> NVFP4Tensor:
        scales = arrays(self.scale).view(np.uint8)
        check_block_scales(self.scale, scales)
        whole = NVFP4Tensor(arrays(self.weight), scales, self._multiplier(arrays))
        return self._cropped(whole)

    def _cropped(self, whole: NVFP4Tensor) -> NVFP4Tensor:
        rows, n = len(whole.codes), self.spec.shape[0]
        if rows == n:
            return whole
        padding = _rows_of(whole, n, rows)
        if bad := int(np.count_nonzero(exact_matrix(padding))):
            raise Mismatch(
                f"has {rows} rows where {n} are needed, and {bad} values of the rest aren't zero",
                self.weight,
            )
        return _rows_of(whole, 0, n)

    def _multiplier(self, arrays: Arrays) -> np.float32:
        stored = np.float32(arrays(self.global_scale).reshape(()))
        if not (np.isfinite(stored) and stored > 0):
            raise Mismatch(f"is {stored}; a finite number above zero is needed", self.global_scale)
        multiplier = multiplier_of_divisor(stored) if self.divides else stored
        if not (np.isfinite(multiplier) and multiplier > 0):
            raise Mismatch(f"is {stored}, whose inverse isn't a finite float32", self.global_scale)
        return multiplier


def nvfp4(spec: TensorSpec, parts: Parts, codes: str) -> NVFP4Source:
    """Raises Mismatch unless codes ("weight" or "weight_packed") and scales are stored as they should be."""
    divides = codes == "weight_packed"
    factor = "weight_global_scale" if divides else "weight_scale_2"
    checks = Checks(parts, codes, "NVFP4")
    n, k = spec.shape
    if k % GROUP:
        raise checks.bad(f"which needs K a multiple of {GROUP}, K is {k}")
    rows = _rows(n, parts[codes].info.shape)
    packed = checks.part(codes, ("U8",), (rows, k // 2))
    scale = checks.part("weight_scale", ("F8_E4M3",), (rows, k // GROUP))
    multiplier = checks.part(factor, ("F32",), (), (1,))
    checks.nothing_else(codes, "weight_scale", factor)
    return NVFP4Source(spec, packed.name, scale.name, multiplier.name, divides)


def _rows(n: int, shape: Shape) -> int:
    """Rows that are stored if they are N or N up to whole tiles, else N."""
    allowed = {-(-n // tile) * tile for tile in _TILES}
    return shape[0] if shape and shape[0] in allowed else n


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
            f"holds {int(bad.sum())} block scales that are NaN or negative, the first is {kind} "
            f"(0x{scales[row, block]:02x}) at row {row}, block {block}",
            name,
        )


def multiplier_of_divisor(divisor: np.float32) -> np.float32:
    """The multiplier t = amax / 2688 that a stored divisor g = 1 / t was made from.

    Both g and t are rounded to float32, so 1 / g misses t by one ulp in about a quarter of the
    cases. The amax of BF16 weights is a BF16 value, though, and 2688 / g is far closer to it than
    to any other BF16 value: rounding there gives it back, and with it t, bit for bit. The guess
    counts only if g is its correctly rounded inverse; else 1 / g stands.
    """
    g = np.float64(divisor)
    with np.errstate(over="ignore", under="ignore"):
        amax = np.float64(np.float32(_RANGE / g).astype(ml_dtypes.bfloat16))
        plain = np.float32(1.0 / g)
        if not (np.isfinite(amax) and amax > 0):
            return plain
        guess = np.float32(amax / _RANGE)
        made_from_it = guess > 0 and np.float32(1.0 / np.float64(guess)) == divisor
    return guess if made_from_it else plain


def _rows_of(tensor: NVFP4Tensor, start: int, stop: int) -> NVFP4Tensor:
    part = take(tensor, Cut(0, ((start, stop),)))
    assert isinstance(part, NVFP4Tensor), "a part is of the kind of the whole"
    return part
