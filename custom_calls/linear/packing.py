"""Checkpoint order -> the byte orders that the handlers read. Vectorised numpy, a block of rows at a time.

Physical N is a multiple of 32 in every packed layout. Physical K is a multiple of 32 for "cpu16" and for FP8, of 64 for NVFP4
and INT4 in the GPU layouts. What padding adds is zero codes under zero scales, so it decodes to zero.

cpu16      tiles of 8 rows, units of 32 k.
m8n8k4     (sm_70, weights are operand B) blocks of 32 rows, units of 1024 bytes.
m16n8k16   (sm_80 and later, weights are operand A) blocks of two 16-row tiles, units of 1024 bytes.

NVFP4
cpu16      codes [N/8, K/32, 8 rows, 16]: the low nibble of byte j is k = j, the high one k = 16 + j, so that each half is one
           scale group in 16 lanes. scales [N/8, K/32, 8 rows, 2].
m8n8k4     codes [N/32, K/64, 2, 32 rows, 16]: a lane owns a row and 32 k of each half. scales [N/32, K/64, 32 rows, 4].
m16n8k16   codes [N/32, K/64, 2 tiles, 32 lanes, 16]: lane 4 g + t owns rows g and g + 8 of the tile and scale group t;
           word i feeds instruction i with k = 16 t + 4 i + 0..3 of both rows.
           scales [N/32, K/64, 32 lanes, 4]: rows g and g + 8 of the first tile, then of the second.

A 32-bit word of the GPU layouts holds four code pairs A, B, C, D, the first code of each pair in the low 16 bits:
A: sign 15, magnitude 11..9   B: magnitude 14..12, sign 8   C: sign 7, magnitude 3..1   D: magnitude 6..4, sign 0.
A magnitude in bits 11..9 of a float16 is the E2M1 value times 2^-14, so decoding is a few shifts and masks.
m8n8k4: A..D are k = 0,1  2,3  4,5  6,7 of the word's 8 k. m16n8k16: A, C are k = 0,1 and 2,3 of row g, B, D of row g + 8.

FP8
cpu16      codes [N/8, K/32, 8 rows, 32], bytes as they are.
m8n8k4     codes [N/32, K/32, 2, 32 rows, 16]: a lane owns a row and 16 k of each half, word i k = 4 i + 0..3 of them.
m16n8k16   codes [N/32, K/32, 2 tiles, 32 lanes, 16]: lane 4 g + t owns k = 8 t + 0..7 of rows g and g + 8; words 2 i and
           2 i + 1 feed instruction i with k = 8 t + 4 i + 0..3 of row g and of row g + 8.

A word of the GPU layouts holds k = 0,1 as pair A, k = 2,3 as pair B, the first code of each pair in the low 16 bits:
A: sign 15, magnitude 13..7   B: sign 14, magnitude 6..0. A magnitude in bits 13..7 of a float16 is the E4M3 value times 2^-8.
One scale per row: [N]. One per row and 128 k: see below, groups of 128 k, the last of which may be short.

INT4
cpu16      codes as for NVFP4.
m8n8k4     codes [N/32, K/64, 2, 32 rows, 16]: a lane owns a row and 32 k of each half, word i k = 8 i + 0..7 of them.
m16n8k16   codes [N/32, K/64, 2 tiles, 32 lanes, 16]: lane 4 g + t owns rows g and g + 8; word i feeds instruction i with
           k = 32 (i / 2) + 8 t + 4 (i % 2) + 0..3 of both rows, so that an instruction stays within 32 k, hence within a group.

A word of the GPU layouts holds four code pairs A, B, C, D in bits 3..0, 7..4, 11..8 and 15..12 of both halves, the first code
of each pair in the low 16 bits. m8n8k4: A..D are k = 0,1  2,3  4,5  6,7. m16n8k16: A, C are k = 0,1 and 2,3 of row g, B, D of
row g + 8.

Scales and zero points per row and group: [N/8, groups, 8] for cpu16, [N/32, groups, 32] for the GPU layouts, where the rows
of a block are ordered by the lane that needs them:
m8n8k4     zero points: as they are, for a lane subtracts that of the row it owns. Scales: octets in the order 0 1 4 5 2 3 6 7,
           for a lane holds sums of rows 0 1 4 5 or of rows 2 3 6 7.
m16n8k16   place 4 g + j holds row g, g + 8, g + 16 or g + 24: of these a lane owns codes, and holds sums.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from onecat_jax.custom_calls.linear.weights import HALF_UNIT

ROW_MULTIPLE = 32
K_MULTIPLES = {"cpu16": 32, "m8n8k4": 64, "m16n8k16": 64}  # of 4-bit codes

_OCTETS = (
    np.arange(32).reshape(4, 2, 2, 2).transpose(0, 2, 1, 3).ravel()
)  # 0 1 4 5 2 3 6 7 8 9 12 ...
_LANES = np.arange(32).reshape(4, 8).T.ravel()  # 0 8 16 24 1 9 ...
ROWS_OF_CODES = {"cpu16": np.arange(8), "m8n8k4": np.arange(32), "m16n8k16": _LANES}
ROWS_OF_SUMS = {"cpu16": np.arange(8), "m8n8k4": _OCTETS, "m16n8k16": _LANES}
_BLOCK_ROWS = 1024  # packed at once: what a block needs in between stays small


def physical_rows(n: int) -> int:
    """N rounded up to what the packed layouts hold."""
    return -(-n // ROW_MULTIPLE) * ROW_MULTIPLE


def padded(array: np.ndarray, column_multiple: int) -> np.ndarray:
    """[N, C] with zero rows and columns added, up to physical N and whole units."""
    rows, columns = physical_rows(len(array)) - len(array), -array.shape[1] % column_multiple
    return np.pad(array, ((0, rows), (0, columns))) if rows or columns else array


def nibbles(codes: np.ndarray) -> np.ndarray:
    """[N, K / 2] -> [N, K], values 0..15, the low nibble first."""
    return np.stack([codes & 15, codes >> 4], axis=-1).reshape(codes.shape[0], -1)


# ---- 4-bit codes [N, K / 2]


def _nibbles_cpu16(codes: np.ndarray) -> np.ndarray:
    c = nibbles(codes)
    n, k = c.shape
    c = c.reshape(n // 8, 8, k // 32, 2, 16)
    units = c[..., 0, :] | (c[..., 1, :] << 4)  # [N/8, 8, K/32, 16]
    return units.transpose(0, 2, 1, 3)


def _nibbles_m8n8k4(codes: np.ndarray) -> np.ndarray:
    """-> [block, unit, half, row, word, pair, k]."""
    c = nibbles(codes)
    n, k = c.shape
    return c.reshape(n // 32, 32, k // 64, 2, 4, 4, 2).transpose(0, 2, 3, 1, 4, 5, 6)


def _e2m1_words(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Four E2M1 pairs [..., 2] -> uint32 [...] in the bit order of the module docstring."""

    def sign(x: np.ndarray) -> np.ndarray:
        return (x >> 3).astype(np.uint32)

    def magnitude(x: np.ndarray) -> np.ndarray:
        return (x & 7).astype(np.uint32)

    halves = sign(a) << 15 | magnitude(a) << 9 | magnitude(b) << 12 | sign(b) << 8
    halves |= sign(c) << 7 | magnitude(c) << 1 | magnitude(d) << 4 | sign(d)
    return halves[..., 0] | halves[..., 1] << 16


def _e2m1_m8n8k4(codes: np.ndarray) -> np.ndarray:
    c = _nibbles_m8n8k4(codes)
    return _e2m1_words(c[..., 0, :], c[..., 1, :], c[..., 2, :], c[..., 3, :])


def _e2m1_m16n8k16(codes: np.ndarray) -> np.ndarray:
    c = nibbles(codes)
    n, k = c.shape
    c = c.reshape(n // 32, 2, 2, 8, k // 64, 4, 4, 2, 2)  # block tile row8 g unit t word pair k
    c = c.transpose(0, 4, 1, 3, 5, 6, 7, 2, 8)  # block unit tile g t word pair row8 k
    return _e2m1_words(c[..., 0, 0, :], c[..., 0, 1, :], c[..., 1, 0, :], c[..., 1, 1, :])


def _int4_halves(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> np.ndarray:
    """One code of four pairs each -> uint16, which hold the pairs' first and second codes in turn."""
    return a | b << 4 | c << 8 | d << 12


def _int4_m8n8k4(codes: np.ndarray) -> np.ndarray:
    c = _nibbles_m8n8k4(codes).astype(np.uint16)
    return _int4_halves(c[..., 0, :], c[..., 1, :], c[..., 2, :], c[..., 3, :])


def _int4_m16n8k16(codes: np.ndarray) -> np.ndarray:
    c = nibbles(codes).astype(np.uint16)
    n, k = c.shape
    # block tile row8 g unit half t instruction pair k
    c = c.reshape(n // 32, 2, 2, 8, k // 64, 2, 4, 2, 2, 2)
    c = c.transpose(
        0, 4, 1, 3, 6, 5, 7, 8, 2, 9
    )  # block unit tile g t half instruction pair row8 k
    return _int4_halves(c[..., 0, 0, :], c[..., 0, 1, :], c[..., 1, 0, :], c[..., 1, 1, :])


# ---- E4M3 codes [N, K]


def _e4m3_cpu16(codes: np.ndarray) -> np.ndarray:
    n, k = codes.shape
    return codes.reshape(n // 8, 8, k // 32, 32).transpose(0, 2, 1, 3)


def _e4m3_halves(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One code of two pairs each -> uint16, which hold the pairs' first and second codes in turn."""
    a, b = a.astype(np.uint16), b.astype(np.uint16)
    return (a & 0x80) << 8 | (a & 0x7F) << 7 | (b & 0x80) << 7 | (b & 0x7F)


def _e4m3_m8n8k4(codes: np.ndarray) -> np.ndarray:
    n, k = codes.shape
    c = codes.reshape(n // 32, 32, k // 32, 2, 4, 2, 2)  # block row unit half word pair k
    c = c.transpose(0, 2, 3, 1, 4, 5, 6)
    return _e4m3_halves(c[..., 0, :], c[..., 1, :])


def _e4m3_m16n8k16(codes: np.ndarray) -> np.ndarray:
    n, k = codes.shape
    # block tile row8 g unit t instruction pair k
    c = codes.reshape(n // 32, 2, 2, 8, k // 32, 4, 2, 2, 2)
    c = c.transpose(0, 4, 1, 3, 5, 6, 2, 7, 8)  # block unit tile g t instruction row8 pair k
    return _e4m3_halves(c[..., 0, :], c[..., 1, :])


# ---- NVFP4 scales [N, K / 16]


def _scales_cpu16(scales: np.ndarray) -> np.ndarray:
    n, groups = scales.shape
    return scales.reshape(n // 8, 8, groups // 2, 2).transpose(0, 2, 1, 3)


def _scales_m8n8k4(scales: np.ndarray) -> np.ndarray:
    n, groups = scales.shape
    return scales.reshape(n // 32, 32, groups // 4, 4).transpose(0, 2, 1, 3)


def _scales_m16n8k16(scales: np.ndarray) -> np.ndarray:
    n, groups = scales.shape
    s = scales.reshape(n // 32, 2, 2, 8, groups // 4, 4)  # block tile row8 g unit t
    return s.transpose(0, 4, 3, 5, 1, 2)  # block unit g t tile row8


@dataclass(frozen=True)
class Form:
    """How one array of a weight lies in one layout."""

    pack: Callable[
        [np.ndarray], np.ndarray
    ]  # [N, C] -> [tiles, units, ...] in any shape and width of bytes
    columns: int  # per unit
    unit: tuple[int, ...]  # bytes of a tile and a unit


_GPU_CODES = (2, 32, 16)
FORMS = {
    ("nvfp4 codes", "cpu16"): Form(_nibbles_cpu16, 16, (8, 16)),
    ("nvfp4 codes", "m8n8k4"): Form(_e2m1_m8n8k4, 32, _GPU_CODES),
    ("nvfp4 codes", "m16n8k16"): Form(_e2m1_m16n8k16, 32, _GPU_CODES),
    ("nvfp4 scales", "cpu16"): Form(_scales_cpu16, 2, (8, 2)),
    ("nvfp4 scales", "m8n8k4"): Form(_scales_m8n8k4, 4, (32, 4)),
    ("nvfp4 scales", "m16n8k16"): Form(_scales_m16n8k16, 4, (32, 4)),
    ("fp8 codes", "cpu16"): Form(_e4m3_cpu16, 32, (8, 32)),
    ("fp8 codes", "m8n8k4"): Form(_e4m3_m8n8k4, 32, _GPU_CODES),
    ("fp8 codes", "m16n8k16"): Form(_e4m3_m16n8k16, 32, _GPU_CODES),
    ("int4 codes", "cpu16"): Form(_nibbles_cpu16, 16, (8, 16)),
    ("int4 codes", "m8n8k4"): Form(_int4_m8n8k4, 32, _GPU_CODES),
    ("int4 codes", "m16n8k16"): Form(_int4_m16n8k16, 32, _GPU_CODES),
}


def _tile(layout: str) -> int:
    return 8 if layout == "cpu16" else 32


def packed_shape(what: str, n: int, columns: int, layout: str) -> tuple[int, ...]:
    """Shape in `layout` of an array [N, C] of bytes; what it is, is part of FORMS' keys."""
    if layout == "rows":
        return n, columns
    form = FORMS[what, layout]
    return physical_rows(n) // _tile(layout), -(-columns // form.columns), *form.unit


def pack_into(out: np.ndarray, what: str, array: np.ndarray, layout: str) -> None:
    """Packs an array [N, C] of bytes in checkpoint order into one of `packed_shape`."""
    if layout == "rows":
        out[:] = array
        return
    form, tile = FORMS[what, layout], _tile(layout)
    for row in range(0, len(array), _BLOCK_ROWS):
        packed = form.pack(padded(array[row : row + _BLOCK_ROWS], form.columns))
        units = np.ascontiguousarray(packed).view(np.uint8).reshape(-1, *out.shape[1:])
        out[row // tile : row // tile + len(units)] = units


def pack_groups(
    values: np.ndarray, group: int, rows: np.ndarray, k_multiple: int = HALF_UNIT
) -> np.ndarray:
    """Values per row and group of k [N, G] -> [N / tile, G physical, tile].

    Args:
      group: k per value.
      rows: [tile] which row of a tile stands in each place.
      k_multiple: of physical K, which the groups must cover.
    """
    groups = values.shape[1]
    k = -(-groups * group // k_multiple) * k_multiple
    v = padded(values, -(-k // group))  # to a single multiple
    v = v.reshape(-1, len(rows), v.shape[1])[:, rows]
    return np.ascontiguousarray(v.transpose(0, 2, 1))
