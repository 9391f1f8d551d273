"""Checkpoint order -> the byte orders that the handlers read. Vectorised numpy, a block of rows at a time.

Physical N is a multiple of 32 in every packed layout. Physical K is a multiple of 32 for "cpu16" and for FP8 in "m8n8k4", else
of 64. What padding adds is zero codes under zero scales, so it decodes to zero.

cpu16      tiles of 8 rows, units of 32 k.
m8n8k4     (sm_70, weights are operand B) blocks of 32 rows, units of 1024 bytes.
m16n8k16   (sm_80 and later, weights are operand A) tiles of 16 rows, steps of 64 k: a run of a tile's steps lies in one piece.

NVFP4
cpu16      codes [N/8, K/32, 8 rows, 16]: the low nibble of byte j is k = j, the high one k = 16 + j, so that each half is one
           scale group in 16 lanes. scales [N/8, K/32, 8 rows, 2].
m8n8k4     codes [N/32, K/64, 2, 32 rows, 16]: a lane owns a row and 32 k of each half. scales [N/32, K/64, 32 rows, 4].
m16n8k16   codes [N/16, K/64, 1, 32 lanes, 16]: lane 4 g + t owns rows g and g + 8 of the tile and scale group t;
           word i feeds instruction i with k = 16 t + 4 i + 0..3 of both rows.
           scales [N/16, K/64, 32 lanes, 2]: rows g and g + 8.

A 32-bit word of the GPU layouts holds four code pairs A, B, C, D, the first code of each pair in the low 16 bits:
A: sign 15, magnitude 11..9   B: magnitude 14..12, sign 8   C: sign 7, magnitude 3..1   D: magnitude 6..4, sign 0.
A magnitude in bits 11..9 of a float16 is the E2M1 value times 2^-14, so decoding is a few shifts and masks.
m8n8k4: A..D are k = 0,1  2,3  4,5  6,7 of the word's 8 k. m16n8k16: A, C are k = 0,1 and 2,3 of row g, B, D of row g + 8.

FP8
cpu16      codes [N/8, K/32, 8 rows, 32], bytes as they are.
m8n8k4     codes [N/32, K/32, 2, 32 rows, 16]: a lane owns a row and 16 k of each half, word i k = 4 i + 0..3 of them.
m16n8k16   codes [N/16, K/64, 2, 32 lanes, 16]: lane 4 g + t owns k = 8 t + 0..7 of each half and rows g and g + 8; words 2 i
           and 2 i + 1 feed instruction i of the half with k = 8 t + 4 i + 0..3 of row g and of row g + 8.

A word of the GPU layouts holds k = 0,1 as pair A, k = 2,3 as pair B, the first code of each pair in the low 16 bits:
A: sign 15, magnitude 13..7   B: sign 14, magnitude 6..0. A magnitude in bits 13..7 of a float16 is the E4M3 value times 2^-8.
One scale per row: [N]. One per row and 128 k: see below, groups of 128 k, the last of which may be short.

INT4
cpu16      codes as for NVFP4.
m8n8k4     codes [N/32, K/64, 2, 32 rows, 16]: a lane owns a row and 32 k of each half, word i k = 8 i + 0..7 of them.
m16n8k16   codes [N/16, K/64, 1, 32 lanes, 16]: lane 4 g + t owns rows g and g + 8; word i feeds instruction i with
           k = 32 (i / 2) + 8 t + 4 (i % 2) + 0..3 of both rows, so that an instruction stays within 32 k, hence within a group.

A word of the GPU layouts holds four code pairs A, B, C, D in bits 3..0, 7..4, 11..8 and 15..12 of both halves, the first code
of each pair in the low 16 bits. m8n8k4: A..D are k = 0,1  2,3  4,5  6,7. m16n8k16: A, C are k = 0,1 and 2,3 of row g, B, D of
row g + 8.

Scales and zero points per row and group: [N/8, groups, 8] for cpu16, [N/32, groups, 32] for m8n8k4, [N/16, groups, 16] for
m16n8k16, where the rows of a block or tile are ordered by the lane that needs them:
m8n8k4     zero points: as they are, for a lane subtracts that of the row it owns. Scales: octets in the order 0 1 4 5 2 3 6 7,
           for a lane holds sums of rows 0 1 4 5 or of rows 2 3 6 7.
m16n8k16   places 2 g and 2 g + 1 hold rows g and g + 8: of these a lane owns codes, and holds sums.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from onecat_jax.custom_calls.linear.weights import HALF_UNIT

ROW_MULTIPLE = 32
TILES = {"cpu16": 8, "m8n8k4": 32, "m16n8k16": 16}  # rows
K_MULTIPLES = {"cpu16": 32, "m8n8k4": 64, "m16n8k16": 64}  # of 4-bit codes

_OCTETS = (
    np.arange(32).reshape(4, 2, 2, 2).transpose(0, 2, 1, 3).ravel()
)  # 0 1 4 5 2 3 6 7 8 9 12 ...
_LANES = np.arange(16).reshape(2, 8).T.ravel()  # 0 8 1 9 ...
ROWS_OF_CODES = {"cpu16": np.arange(8), "m8n8k4": np.arange(32), "m16n8k16": _LANES}
ROWS_OF_SUMS = {"cpu16": np.arange(8), "m8n8k4": _OCTETS, "m16n8k16": _LANES}
_BLOCK_BYTES = 384 << 10  # packed at once: what a block needs in between stays in the cache


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


def _words(codes: np.ndarray, dtype: type) -> np.ndarray:
    """Rows of bytes as rows of wider words, the first byte lowest."""
    return np.ascontiguousarray(codes).view(dtype)


def _nibbles_cpu16(codes: np.ndarray) -> np.ndarray:
    """Eight bytes at once: the halves of a unit swap a nibble in each byte, then bytes of the one and the other take turns."""
    n, columns = codes.shape
    halves = _words(codes, np.uint64).reshape(n, columns // 16, 2)
    first, second = halves[..., 0].copy(), halves[..., 1].copy()
    differ = first >> _FOUR
    differ ^= second
    differ &= _LOW
    second ^= differ  # its low nibbles are the high ones of the first half now
    differ <<= _FOUR
    first ^= differ
    pairs = second.view(np.uint8).astype(np.uint16)
    pairs <<= 8
    pairs |= first.view(np.uint8).astype(np.uint16)
    # A unit's 16 bytes as one element, which is moved as fast as any.
    return pairs.view(np.complex128).reshape(n // 8, 8, columns // 16).transpose(0, 2, 1)


_LOW, _FOUR = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(4)


def _e2m1_place(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Sign and magnitude of A and B in the order of the module docstring."""
    return (a >> 3) << 15 | (a & 7) << 9 | (b & 7) << 12 | (b >> 3) << 8


def _int4_place(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a | b << 4


def _table(place: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """What two bytes of codes (pairs A and B) contribute to a word: uint32 [65536].

    Args:
      place: bits of the first codes of both pairs in the low half of a word; those of the second codes are alike in the high.
    """
    a, a2, b, b2 = (np.arange(65536, dtype=np.uint32) >> shift & 15 for shift in (0, 4, 8, 12))
    return place(a, b) | place(a2, b2) << 16


_E2M1_AB, _INT4_AB = _table(_e2m1_place), _table(_int4_place)
_E2M1_TABLES = _E2M1_AB, _E2M1_AB >> 8  # of pairs A and B, and of C and D
_INT4_TABLES = _INT4_AB, _INT4_AB << 8

Tables = tuple[np.ndarray, np.ndarray]


def _m8n8k4(codes: np.ndarray, tables: Tables) -> np.ndarray:
    """4-bit codes -> words [block, unit, half, row, word]: A..D are neighbours in a row."""
    n, columns = codes.shape
    shorts = _words(codes, np.uint16)
    words = tables[0].take(shorts[:, 0::2]) | tables[1].take(shorts[:, 1::2])
    return words.reshape(n // 32, 32, columns // 32, 2, 4).transpose(0, 2, 3, 1, 4)


def _m16n8k16(codes: np.ndarray, tables: Tables) -> np.ndarray:
    """4-bit codes -> words [tile, g, two bytes of a row]: A and C are of row g, B and D of row g + 8."""
    n, columns = codes.shape
    shorts = _words(codes, np.uint16).reshape(n // 16, 2, 8, columns // 2)
    row, row8 = shorts[:, 0], shorts[:, 1]
    ab, cd = (row & 0xFF) | (row8 << 8), (row >> 8) | (row8 & 0xFF00)
    return tables[0].take(ab) | tables[1].take(cd)


def _e2m1_m8n8k4(codes: np.ndarray) -> np.ndarray:
    return _m8n8k4(codes, _E2M1_TABLES)


def _e2m1_m16n8k16(codes: np.ndarray) -> np.ndarray:
    words = _m16n8k16(codes, _E2M1_TABLES)  # tile g step t word
    return words.reshape(*words.shape[:2], -1, 4, 4).transpose(0, 2, 1, 3, 4)


def _int4_m8n8k4(codes: np.ndarray) -> np.ndarray:
    return _m8n8k4(codes, _INT4_TABLES)


def _int4_m16n8k16(codes: np.ndarray) -> np.ndarray:
    words = _m16n8k16(codes, _INT4_TABLES)  # tile g step half t instruction
    return words.reshape(*words.shape[:2], -1, 2, 4, 2).transpose(0, 2, 1, 4, 3, 5)


# ---- E4M3 codes [N, K]


def _e4m3_cpu16(codes: np.ndarray) -> np.ndarray:
    n, k = codes.shape
    return codes.reshape(n // 8, 8, k // 32, 32).transpose(0, 2, 1, 3)


def _e4m3_table(sign: int, rest: int) -> np.ndarray:
    """What two bytes of codes contribute to a word, shifted so far to the left as their pair is: uint32 [65536]."""
    first, second = (np.arange(65536, dtype=np.uint32) >> shift & 0xFF for shift in (0, 8))
    low, high = ((c & 0x80) << sign | (c & 0x7F) << rest for c in (first, second))
    return low | high << 16


_E4M3_A, _E4M3_B = _e4m3_table(8, 7), _e4m3_table(7, 0)


def _e4m3_words(codes: np.ndarray) -> np.ndarray:
    """Bytes [N, K] -> words uint32 [N, K / 4]."""
    shorts = _words(codes, np.uint16)
    return _E4M3_A.take(shorts[:, 0::2]) | _E4M3_B.take(shorts[:, 1::2])


def _e4m3_m8n8k4(codes: np.ndarray) -> np.ndarray:
    n, k = codes.shape
    words = _e4m3_words(codes).reshape(n // 32, 32, k // 32, 2, 4)  # block row unit half word
    return words.transpose(0, 2, 3, 1, 4)


def _e4m3_m16n8k16(codes: np.ndarray) -> np.ndarray:
    n, k = codes.shape
    words = _e4m3_words(codes).reshape(
        n // 16, 2, 8, k // 64, 2, 4, 2
    )  # tile row8 g step half t instruction
    return words.transpose(0, 3, 4, 2, 5, 6, 1)


# ---- NVFP4 scales [N, K / 16]


def _scales_cpu16(scales: np.ndarray) -> np.ndarray:
    n, groups = scales.shape
    return _words(scales, np.uint16).reshape(n // 8, 8, groups // 2).transpose(0, 2, 1)


def _scales_m8n8k4(scales: np.ndarray) -> np.ndarray:
    n, groups = scales.shape
    return _words(scales, np.uint32).reshape(n // 32, 32, groups // 4).transpose(0, 2, 1)


def _scales_m16n8k16(scales: np.ndarray) -> np.ndarray:
    n, groups = scales.shape
    return scales.reshape(n // 16, 2, 8, groups // 4, 4).transpose(
        0, 3, 2, 4, 1
    )  # tile step g t row8


@dataclass(frozen=True)
class Form:
    """How one array of a weight lies in one layout."""

    pack: Callable[
        [np.ndarray], np.ndarray
    ]  # [N, C] -> [tiles, units, ...] in any shape and width of bytes
    columns: int  # per unit or step
    unit: tuple[int, ...]  # bytes of a tile and a unit


_HALVES, _WHOLE = (2, 32, 16), (1, 32, 16)
FORMS = {
    ("nvfp4 codes", "cpu16"): Form(_nibbles_cpu16, 16, (8, 16)),
    ("nvfp4 codes", "m8n8k4"): Form(_e2m1_m8n8k4, 32, _HALVES),
    ("nvfp4 codes", "m16n8k16"): Form(_e2m1_m16n8k16, 32, _WHOLE),
    ("nvfp4 scales", "cpu16"): Form(_scales_cpu16, 2, (8, 2)),
    ("nvfp4 scales", "m8n8k4"): Form(_scales_m8n8k4, 4, (32, 4)),
    ("nvfp4 scales", "m16n8k16"): Form(_scales_m16n8k16, 4, (32, 2)),
    ("fp8 codes", "cpu16"): Form(_e4m3_cpu16, 32, (8, 32)),
    ("fp8 codes", "m8n8k4"): Form(_e4m3_m8n8k4, 32, _HALVES),
    ("fp8 codes", "m16n8k16"): Form(_e4m3_m16n8k16, 64, _HALVES),
    ("int4 codes", "cpu16"): Form(_nibbles_cpu16, 16, (8, 16)),
    ("int4 codes", "m8n8k4"): Form(_int4_m8n8k4, 32, _HALVES),
    ("int4 codes", "m16n8k16"): Form(_int4_m16n8k16, 32, _WHOLE),
}


def packed_shape(what: str, n: int, columns: int, layout: str) -> tuple[int, ...]:
    """Shape in `layout` of an array [N, C] of bytes; what it is, is part of FORMS' keys."""
    if layout == "rows":
        return n, columns
    form = FORMS[what, layout]
    return physical_rows(n) // TILES[layout], -(-columns // form.columns), *form.unit


def pack_into(out: np.ndarray, what: str, siblings: Sequence[np.ndarray], layout: str) -> None:
    """Packs arrays [N, C] of bytes in checkpoint order, one below the other, into one of `packed_shape`."""
    if layout == "rows":
        np.concatenate(siblings, out=out)
        return
    if any(len(array) % ROW_MULTIPLE for array in siblings[:-1]):
        siblings = [np.concatenate(siblings)]
    first = 0  # tile
    for array in siblings:
        tiles = physical_rows(len(array)) // TILES[layout]
        _pack_one(out[first : first + tiles], what, array, layout)
        first += tiles


def _pack_one(out: np.ndarray, what: str, array: np.ndarray, layout: str) -> None:
    form, tile = FORMS[what, layout], TILES[layout]
    rows = ROW_MULTIPLE * max(1, _BLOCK_BYTES // (ROW_MULTIPLE * array.shape[1]))
    for row in range(0, len(array), rows):
        packed = form.pack(padded(array[row : row + rows], form.columns))
        target = out[row // tile : row // tile + len(packed)]
        target.view(packed.dtype).reshape(packed.shape)[:] = packed  # out is contiguous: a view


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
