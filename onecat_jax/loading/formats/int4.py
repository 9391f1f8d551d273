"""What the INT4 formats share: eight 4-bit codes in an int32, groups of k with a scale and a zero point."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from onecat_jax.custom_calls.linear import INT4Tensor
from onecat_jax.custom_calls.linear.weights import HALF_UNIT
from onecat_jax.loading.dtypes import DENSE, DTYPES
from onecat_jax.loading.formats.parts import Checks, Mismatch
from onecat_jax.loading.formats.source import Format, Source, Storage
from onecat_jax.models.pieces import ORDERED_GRAIN, Grain, int4_grain
from onecat_jax.models.tensors import int4_variant

CODES = 8  # in a word
INT4_WORDS = ("I32",)
INT4_SCALES = DENSE
SYMMETRIC_ZERO = 8
_WORDS_AT_ONCE = (
    32  # columns of words that are transposed together, over all of K: the blocks stay in the cache
)


@dataclass(frozen=True)
class INT4Source(Source, abc.ABC):
    """Words of 4-bit codes.

    Attributes:
      scale, zero_point: stored names; "" where there are no zero points.
      group: k per scale.
      scale_dtype: of the stored scales, as its header says.
    """

    scale: str = ""
    zero_point: str = ""
    group: int = 0
    scale_dtype: str = "F16"

    format: ClassVar[Format] = "int4"
    kind: ClassVar[type[Any]] = INT4Tensor

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(name for name in (self.weight, self.scale, self.zero_point) if name)

    @property
    def storage(self) -> Storage:
        return Storage("int4", group=self.group, zeros=bool(self.zero_point))

    @property
    def ordered(self) -> bool:
        """Whether groups don't consist of neighbouring columns."""
        return False

    @property
    def variant(self) -> str:
        return int4_variant(self.group, DTYPES[self.scale_dtype], self.ordered)

    @property
    def grain(self) -> Grain:
        return ORDERED_GRAIN if self.ordered else int4_grain(self.group)


def group_size(checks: Checks, k: int, groups: int) -> int:
    """k per scale.

    Raises:
      Mismatch: the groups don't divide K, or aren't multiples of 32, which every packed layout needs.
    """
    if groups < 1 or k % groups:
        raise checks.bad(f"but K = {k} isn't divisible into the {groups} groups of its scales")
    if (group := k // groups) % HALF_UNIT:
        raise checks.bad(
            f"in groups of {group} (K = {k}, {groups} scales a row); groups must be a multiple of {HALF_UNIT}"
        )
    return group


def checked_scales(name: str, scales: np.ndarray) -> np.ndarray:
    """Raises Mismatch unless all are finite."""
    if bad := int((~np.isfinite(scales)).sum()):
        raise Mismatch(f"holds {bad} of {scales.size} scales that aren't finite", name)
    return scales


def no_zeros(scales: np.ndarray) -> np.ndarray:
    """The zero points of a symmetric format, uint8 of the scales' shape."""
    return np.full(scales.shape, SYMMETRIC_ZERO, np.uint8)


def unpack_columns(words: np.ndarray, places: Sequence[int]) -> np.ndarray:
    """The codes of small arrays, along the last axis.

    Args:
      words: 32-bit integers [..., W].
      places: which nibble of a word, counted from the least significant, holds each of its columns.

    Returns:
      uint8 [..., 8 W].
    """
    shifts = 4 * np.asarray(places, np.uint32)
    codes = (words.view(np.uint32)[..., None] >> shifts) & np.uint32(15)
    return codes.astype(np.uint8).reshape(*words.shape[:-1], CODES * words.shape[-1])


def transposed_codes(words: np.ndarray, places: Sequence[int]) -> np.ndarray:
    """Codes that are packed along N and stored with K outermost, as rows of N with two neighbouring k in a byte.

    Works in blocks, and needs no more than a block beside its result.

    Args:
      words: 32-bit integers [K, W], K even, which may be a strided view.
      places: which nibble of a word holds each of its columns.

    Returns:
      uint8 [8 W, K / 2], the low nibble is the even k.
    """
    k, width = words.shape
    columns = np.argsort(places)  # of a word's nibbles from the least significant on
    out = np.empty((width, CODES, k // 2), np.uint8)
    for first in range(0, width, _WORDS_AT_ONCE):
        block = np.ascontiguousarray(words[:, first : first + _WORDS_AT_ONCE]).view(np.uint8)
        even, odd = block.reshape(k // 2, 2, -1, 4).transpose(1, 3, 2, 0)  # byte, word, k
        target = out[first : first + _WORDS_AT_ONCE]
        for byte in range(4):
            low, high = columns[2 * byte], columns[2 * byte + 1]
            target[:, low] = (even[byte] & 15) | (odd[byte] << 4)
            target[:, high] = (even[byte] >> 4) | (odd[byte] & 0xF0)
    return out.reshape(CODES * width, k // 2)
