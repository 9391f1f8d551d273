"""Checkpoint order -> the byte orders that the handlers read. Vectorised numpy, one layer at a time.

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
m8n8k4     zero points: as they are, a lane subtracts that of the row it owns. Scales: octets in the order 0 1 4 5 2 3 6 7, since a
           lane holds sums of rows 0 1 4 5 or of rows 2 3 6 7.
m16n8k16   place 4 g + j holds row g, g + 8, g + 16 or g + 24: of these a lane owns codes, and holds sums.
"""

from collections.abc import Callable

import numpy as np

from onecat_jax.custom_calls.linear.weights import GROUP, HALF_UNIT

ROW_MULTIPLE = 32
K_MULTIPLES = {"cpu16": 32, "m8n8k4": 64, "m16n8k16": 64}  # of 4-bit codes

_OCTETS = np.arange(32).reshape(4, 2, 2, 2).transpose(0, 2, 1, 3).ravel()  # 0 1 4 5 2 3 6 7 8 9 12 ...
_LANES = np.arange(32).reshape(4, 8).T.ravel()  # 0 8 16 24 1 9 ...
ROWS_OF_CODES = {"cpu16": np.arange(8), "m8n8k4": np.arange(32), "m16n8k16": _LANES}
ROWS_OF_SUMS = {"cpu16": np.arange(8), "m8n8k4": _OCTETS, "m16n8k16": _LANES}

Packed = tuple[np.ndarray, np.ndarray]


def physical_rows(n: int) -> int:
    """N rounded up to what the packed layouts hold."""
    return -(-n // ROW_MULTIPLE) * ROW_MULTIPLE


def padded(array: np.ndarray, columns: int) -> np.ndarray:
    """[N, C] with zeros added up to [physical N, columns]."""
    rows, more = physical_rows(len(array)) - len(array), columns - array.shape[1]
    return np.pad(array, ((0, rows), (0, more))) if rows or more else array


def nibbles(codes: np.ndarray) -> np.ndarray:
    """[N, K / 2] -> [N, K], values 0..15, the low nibble first."""
    return np.stack([codes & 15, codes >> 4], axis=-1).reshape(codes.shape[0], -1)


def _contiguous(array: np.ndarray, *axes: int) -> np.ndarray:
    return np.ascontiguousarray(array.transpose(axes))


def _cpu16_nibbles(codes: np.ndarray) -> np.ndarray:
    c = nibbles(codes)
    n, k = c.shape
    c = c.reshape(n // 8, 8, k // 32, 2, 16)
    units = c[..., 0, :] | (c[..., 1, :] << 4)  # [N/8, 8, K/32, 16]
    return _contiguous(units, 0, 2, 1, 3)


def pack_cpu16(codes: np.ndarray, scales: np.ndarray) -> Packed:
    n, groups = scales.shape
    s = scales.reshape(n // 8, 8, groups // 2, 2)
    return _cpu16_nibbles(codes), _contiguous(s, 0, 2, 1, 3)


def _word(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Four E2M1 pairs [..., 2] -> uint32 [...] in the bit order of the module docstring."""

    def sign(x: np.ndarray) -> np.ndarray:
        return (x >> 3).astype(np.uint32)

    def magnitude(x: np.ndarray) -> np.ndarray:
        return (x & 7).astype(np.uint32)

    halves = sign(a) << 15 | magnitude(a) << 9 | magnitude(b) << 12 | sign(b) << 8
    halves |= sign(c) << 7 | magnitude(c) << 1 | magnitude(d) << 4 | sign(d)
    return halves[..., 0] | halves[..., 1] << 16


def pack_m8n8k4(codes: np.ndarray, scales: np.ndarray) -> Packed:
    c = nibbles(codes)
    n, k = c.shape
    c = c.reshape(n // 32, 32, k // 64, 2, 4, 4, 2)  # block row unit half word pair k
    c = c.transpose(0, 2, 3, 1, 4, 5, 6)  # block unit half row word pair k
    w = _word(c[..., 0, :], c[..., 1, :], c[..., 2, :], c[..., 3, :])
    s = scales.reshape(n // 32, 32, k // 64, 4).transpose(0, 2, 1, 3)
    return (
        np.ascontiguousarray(w).view(np.uint8).reshape(n // 32, k // 64, 2, 32, 16),
        np.ascontiguousarray(s),
    )


def pack_m16n8k16(codes: np.ndarray, scales: np.ndarray) -> Packed:
    c = nibbles(codes)
    n, k = c.shape
    c = c.reshape(n // 32, 2, 2, 8, k // 64, 4, 4, 2, 2)  # block tile row8 g unit t word pair k
    c = c.transpose(0, 4, 1, 3, 5, 6, 7, 2, 8)  # block unit tile g t word pair row8 k
    w = _word(c[..., 0, 0, :], c[..., 0, 1, :], c[..., 1, 0, :], c[..., 1, 1, :])
    s = scales.reshape(n // 32, 2, 2, 8, k // 64, 4)  # block tile row8 g unit t
    s = s.transpose(0, 4, 3, 5, 1, 2)  # block unit g t tile row8
    return (
        np.ascontiguousarray(w).view(np.uint8).reshape(n // 32, k // 64, 2, 32, 16),
        np.ascontiguousarray(s).reshape(n // 32, k // 64, 32, 4),
    )


PACKERS: dict[str, Callable[[np.ndarray, np.ndarray], Packed]] = {
    "cpu16": pack_cpu16,
    "m8n8k4": pack_m8n8k4,
    "m16n8k16": pack_m16n8k16,
}


def pack_nvfp4(codes: np.ndarray, scales: np.ndarray, layout: str) -> Packed:
    """One NVFP4 matrix in checkpoint order (codes [N, K/2], scales [N, K/16]) -> its bytes in `layout`."""
    if layout == "rows":
        return codes, scales
    k = _physical_k(codes, layout)
    return PACKERS[layout](padded(codes, k // 2), padded(scales, k // GROUP))


def _physical_k(codes: np.ndarray, layout: str) -> int:
    """K of 4-bit codes [N, K/2] rounded up to what the layout holds."""
    return -(-2 * codes.shape[1] // K_MULTIPLES[layout]) * K_MULTIPLES[layout]


def pack_fp8(codes: np.ndarray, layout: str) -> np.ndarray:
    """Codes of one FP8 matrix [N, K] -> their bytes in `layout`."""
    if layout == "rows":
        return codes
    c = padded(codes, codes.shape[1])
    n, k = c.shape
    if layout == "cpu16":
        return _contiguous(c.reshape(n // 8, 8, k // 32, 32), 0, 2, 1, 3)
    if layout == "m8n8k4":
        c = c.reshape(n // 32, 32, k // 32, 2, 4, 2, 2)  # block row unit half word pair k
        c = c.transpose(0, 2, 3, 1, 4, 5, 6)
    else:
        c = c.reshape(n // 32, 2, 2, 8, k // 32, 4, 2, 2, 2)  # block tile row8 g unit t instruction pair k
        c = c.transpose(0, 4, 1, 3, 5, 6, 2, 7, 8)  # block unit tile g t instruction row8 pair k
    a, b = c[..., 0, :].astype(np.uint16), c[..., 1, :].astype(np.uint16)
    halves = (a & 0x80) << 8 | (a & 0x7F) << 7 | (b & 0x80) << 7 | (b & 0x7F)
    return np.ascontiguousarray(halves).view(np.uint8).reshape(n // 32, k // 32, 2, 32, 16)


def pack_int4(codes: np.ndarray, layout: str) -> np.ndarray:
    """Codes of one INT4 matrix [N, K/2] -> their bytes in `layout`."""
    if layout == "rows":
        return codes
    whole = padded(codes, _physical_k(codes, layout) // 2)
    if layout == "cpu16":
        return _cpu16_nibbles(whole)
    c = nibbles(whole).astype(np.uint16)
    n, k = c.shape
    if layout == "m8n8k4":
        c = c.reshape(n // 32, 32, k // 64, 2, 4, 4, 2)  # block row unit half word pair k
        c = c.transpose(0, 2, 3, 1, 4, 6, 5)  # block unit half row word k pair
    else:
        # block tile row8 g unit half t instruction pair k
        c = c.reshape(n // 32, 2, 2, 8, k // 64, 2, 4, 2, 2, 2)
        c = c.transpose(0, 4, 1, 3, 6, 5, 7, 9, 8, 2)  # block unit tile g t half instruction k pair row8
        c = c.reshape(*c.shape[:8], 4)
    halves = c[..., 0] | c[..., 1] << 4 | c[..., 2] << 8 | c[..., 3] << 12
    return np.ascontiguousarray(halves).view(np.uint8).reshape(n // 32, k // 64, 2, 32, 16)


def pack_groups(values: np.ndarray, group: int, rows: np.ndarray, k_multiple: int = HALF_UNIT) -> np.ndarray:
    """Values per row and group of k [N, G] -> [N / tile, G physical, tile].

    Args:
      group: k per value.
      rows: [tile] which row of a tile stands in each place.
      k_multiple: of physical K, which the groups must cover.
    """
    n, groups = values.shape
    k = -(-groups * group // k_multiple) * k_multiple
    v = padded(values, -(-k // group))
    return _contiguous(v.reshape(-1, len(rows), v.shape[1])[:, rows], 0, 2, 1)
