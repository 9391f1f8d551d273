"""Checkpoint order -> the byte orders that the handlers read. Vectorised numpy, a block of rows at a time.

Physical N is a multiple of 32 in every packed layout; physical K a multiple of 32 for "cpu16" and of 64 for the GPU
layouts. What padding adds is zero codes under zero scales, so it decodes to zero.

cpu16      tiles of 8 rows, units of 32 k. codes [N/8, K/32, 8 rows, 16]: the low nibble of byte j is k = j, the high one
           k = 16 + j, so that each half is one scale group in 16 lanes. scales [N/8, K/32, 8 rows, 2].
m8n8k4     (sm_70, weights are operand B) blocks of 32 rows, units of 64 k. codes [N/32, K/64, 2, 32 rows, 16]: a lane
           owns a row and 32 k of each half. scales [N/32, K/64, 32 rows, 4].
m16n8k16   (sm_80 and later, weights are operand A) blocks of two 16-row tiles, units of 64 k.
           codes [N/32, K/64, 2 tiles, 32 lanes, 16]: lane 4 g + t owns rows g and g + 8 of the tile and scale group t;
           word i feeds instruction i with k = 16 t + 4 i + 0..3 of both rows.
           scales [N/32, K/64, 32 lanes, 4]: rows g and g + 8 of the first tile, then of the second.

A 32-bit word of the GPU layouts holds four code pairs A, B, C, D, the first code of each pair in the low 16 bits:
A: sign 15, magnitude 11..9   B: magnitude 14..12, sign 8   C: sign 7, magnitude 3..1   D: magnitude 6..4, sign 0.
A magnitude in bits 11..9 of a float16 is the E2M1 value times 2^-14, so decoding is a few shifts and masks.
m8n8k4: A..D are k = 0,1  2,3  4,5  6,7 of the word's 8 k. m16n8k16: A, C are k = 0,1 and 2,3 of row g, B, D of row g + 8.
"""

from collections.abc import Callable

import numpy as np

from onecat_jax.custom_calls.linear.weights import GROUP

ROW_MULTIPLE = 32
K_MULTIPLES = {"cpu16": 32, "m8n8k4": 64, "m16n8k16": 64}
_ROWS_OF_TILE = {"cpu16": 8, "m8n8k4": 32, "m16n8k16": 32}
_UNIT_SHAPES = {  # codes and scales of a tile and a unit of k
    "cpu16": ((8, 16), (8, 2)),
    "m8n8k4": ((2, 32, 16), (32, 4)),
    "m16n8k16": ((2, 32, 16), (32, 4)),
}
_BLOCK_ROWS = 1024  # packed at once: what a block needs in between stays small

Packed = tuple[np.ndarray, np.ndarray]


def physical_rows(n: int) -> int:
    """N rounded up to what the packed layouts hold."""
    return -(-n // ROW_MULTIPLE) * ROW_MULTIPLE


def pad(codes: np.ndarray, scales: np.ndarray, k_multiple: int) -> Packed:
    """Checkpoint order with zero rows and zero k added up to the physical sizes."""
    n, half_k = codes.shape
    rows = physical_rows(n) - n
    k = -(2 * half_k) % k_multiple
    if not rows and not k:
        return codes, scales
    return (
        np.pad(codes, ((0, rows), (0, k // 2))),
        np.pad(scales, ((0, rows), (0, k // GROUP))),
    )


def _nibbles(codes: np.ndarray) -> np.ndarray:
    """[N, K / 2] -> [N, K], values 0..15."""
    return np.stack([codes & 15, codes >> 4], axis=-1).reshape(codes.shape[0], -1)


def pack_cpu16(codes: np.ndarray, scales: np.ndarray) -> Packed:
    c = _nibbles(codes)
    n, k = c.shape
    c = c.reshape(n // 8, 8, k // 32, 2, 16)
    units = c[..., 0, :] | (c[..., 1, :] << 4)  # [N/8, 8, K/32, 16]
    s = scales.reshape(n // 8, 8, k // 32, 2)
    return (
        np.ascontiguousarray(units.transpose(0, 2, 1, 3)),
        np.ascontiguousarray(s.transpose(0, 2, 1, 3)),
    )


def _word(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Four code pairs [..., 2] -> uint32 [...] in the bit order of the module docstring."""

    def sign(x: np.ndarray) -> np.ndarray:
        return (x >> 3).astype(np.uint32)

    def magnitude(x: np.ndarray) -> np.ndarray:
        return (x & 7).astype(np.uint32)

    halves = sign(a) << 15 | magnitude(a) << 9 | magnitude(b) << 12 | sign(b) << 8
    halves |= sign(c) << 7 | magnitude(c) << 1 | magnitude(d) << 4 | sign(d)
    return halves[..., 0] | halves[..., 1] << 16


def pack_m8n8k4(codes: np.ndarray, scales: np.ndarray) -> Packed:
    c = _nibbles(codes)
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
    c = _nibbles(codes)
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


def packed_shapes(n: int, k: int, layout: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the codes and scales of one matrix in `layout`."""
    if layout == "rows":
        return (n, k // 2), (n, k // GROUP)
    tiles = physical_rows(n) // _ROWS_OF_TILE[layout], -(-k // K_MULTIPLES[layout])
    codes, scales = _UNIT_SHAPES[layout]
    return (*tiles, *codes), (*tiles, *scales)


def pack_into(out: Packed, codes: np.ndarray, scales: np.ndarray, layout: str) -> None:
    """Packs one matrix in checkpoint order (codes [N, K/2], scales [N, K/16]) into arrays of `packed_shapes`."""
    if layout == "rows":
        out[0][:], out[1][:] = codes, scales
        return
    tile = _ROWS_OF_TILE[layout]
    for row in range(0, codes.shape[0], _BLOCK_ROWS):
        block = slice(row, row + _BLOCK_ROWS)
        packed = PACKERS[layout](*pad(codes[block], scales[block], K_MULTIPLES[layout]))
        tiles = slice(row // tile, row // tile + packed[0].shape[0])
        out[0][tiles], out[1][tiles] = packed


def pack(codes: np.ndarray, scales: np.ndarray, layout: str) -> Packed:
    """One matrix in checkpoint order -> its bytes in `layout`."""
    shapes = packed_shapes(codes.shape[0], 2 * codes.shape[1], layout)
    out = np.empty(shapes[0], np.uint8), np.empty(shapes[1], np.uint8)
    pack_into(out, codes, scales, layout)
    return out
