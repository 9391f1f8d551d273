"""INT4 packed along N with K outermost (AWQ, Quark): read a part at a time, transposed on the way."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onecat_jax.custom_calls.linear import INT4Tensor
from onecat_jax.loading.formats.int4 import (
    CODES,
    INT4Source,
    checked_scales,
    no_zeros,
    transposed_codes,
    unpack_columns,
)
from onecat_jax.loading.formats.parts import Mismatch
from onecat_jax.loading.formats.source import Arrays
from onecat_jax.models.pieces import Cut, Span

INTERLEAVED = (0, 4, 1, 5, 2, 6, 3, 7)
"""Which nibble of a word holds each of its columns in AWQ's order, and Quark's "reorder"."""
SEQUENTIAL = tuple(range(CODES))


@dataclass(frozen=True)
class ColumnSource(INT4Source, abc.ABC):
    """Words [K, W] of codes, scales [K/g, N], words [K/g, W] of zero points; the columns beyond N hold zeros."""

    @property
    @abc.abstractmethod
    def places(self) -> Sequence[int]:
        """Which nibble of a word holds each of its columns."""

    @property
    @abc.abstractmethod
    def signed(self) -> bool:
        """Whether nibbles are two's complement: the unsigned code is 8 more."""

    def read(self, arrays: Arrays) -> INT4Tensor:
        return self.read_part(arrays, None)

    def read_part(self, arrays: Arrays, cut: Cut | None) -> INT4Tensor:
        n, k = self.spec.shape
        rows: tuple[Span, ...] = cut.spans if cut and cut.dim == 0 else ((0, n),)
        (first, last), *_ = cut.spans if cut and cut.dim == 1 else ((0, k),)
        words = arrays(self.weight)[first:last]
        groups = slice(first // self.group, last // self.group)
        flip = 0x88 if self.signed else 0
        if any(stop == n for _, stop in rows):
            self._check_padding(words)
        codes = [self._rows(words, start, stop) for start, stop in rows]
        scales = checked_scales(self.scale, arrays(self.scale)[groups])
        zeros = self._zeros(arrays, groups)
        keep = [slice(start, stop) for start, stop in rows]
        return INT4Tensor(
            _joined(codes) ^ np.uint8(flip) if flip else _joined(codes),
            _joined([np.ascontiguousarray(scales[:, at].T) for at in keep]),
            _joined([np.ascontiguousarray(zeros[:, at].T) for at in keep]),
            self.group,
        )

    def _rows(self, words: np.ndarray, start: int, stop: int) -> np.ndarray:
        """Rows of N, from the words that hold them."""
        first = start // CODES
        found = transposed_codes(words[:, first : -(-stop // CODES)], self.places)
        return found[start - CODES * first : stop - CODES * first]

    def _zeros(self, arrays: Arrays, groups: slice) -> np.ndarray:
        """[G, N] unsigned, and what pads the last word."""
        if not self.zero_point:
            return no_zeros(arrays(self.scale)[groups])
        zeros = unpack_columns(arrays(self.zero_point)[groups], self.places)
        return zeros ^ np.uint8(8) if self.signed else zeros

    def _check_padding(self, words: np.ndarray) -> None:
        n = self.spec.shape[0]
        if n % CODES == 0:
            return
        last = unpack_columns(np.ascontiguousarray(words[:, -1:]), self.places)
        if bad := int(np.count_nonzero(last[:, n % CODES :])):
            raise Mismatch(
                f"holds {CODES * words.shape[1]} columns where {n} are needed, and {bad} codes of the rest aren't zero",
                self.weight,
            )


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
