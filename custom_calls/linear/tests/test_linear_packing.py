"""Where every code and scale lies in the packed layouts, and that dense weights are cast bit for bit.

Oracle: the layouts as packing.py's docstring describes them, put down code by code. Groups' scales and zero points aren't
covered here; test_linear_formats.py meets them through the products.
"""

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import pytest

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import DenseTensor, LinearRoute, build_linear
from onecat_jax.custom_calls.linear.packing import FORMS, pack_into, packed_shape

Place = tuple[tuple[int, ...], int]  # index of a byte or word, bits that go there

E2M1_SIGNS, E2M1_MAGNITUDES = (15, 8, 7, 0), (9, 12, 1, 4)  # of pairs A, B, C, D
E4M3_SIGNS, E4M3_MAGNITUDES = (15, 14), (7, 0)


def e2m1(code: int, pair: int, second: int) -> int:
    bits = (code >> 3) << E2M1_SIGNS[pair] | (code & 7) << E2M1_MAGNITUDES[pair]
    return bits << 16 * second


def e4m3(code: int, pair: int, second: int) -> int:
    bits = (code >> 7) << E4M3_SIGNS[pair] | (code & 0x7F) << E4M3_MAGNITUDES[pair]
    return bits << 16 * second


def int4(code: int, pair: int, second: int) -> int:
    return code << 4 * pair << 16 * second


def nibble_cpu16(n: int, k: int, code: int) -> Place:
    return (n // 8, k // 32, n % 8, k % 16), code << 4 * (k % 32 // 16)


def nvfp4_m8n8k4(n: int, k: int, code: int) -> Place:
    at = n // 32, k // 64, k % 64 // 32, n % 32, k % 32 // 8
    return at, e2m1(code, k % 8 // 2, k % 2)


def int4_m8n8k4(n: int, k: int, code: int) -> Place:
    at = n // 32, k // 64, k % 64 // 32, n % 32, k % 32 // 8
    return at, int4(code, k % 8 // 2, k % 2)


def two_rows(n: int, t: int) -> tuple[int, int, int]:
    """Tile, lane 4 g + t, and whether the row is g + 8."""
    return n // 16, 4 * (n % 8) + t, n % 16 // 8


def nvfp4_m16n8k16(n: int, k: int, code: int) -> Place:
    tile, lane, row8 = two_rows(n, k % 64 // 16)
    at = tile, k // 64, 0, lane, k % 16 // 4
    return at, e2m1(code, 2 * (k % 4 // 2) + row8, k % 2)


def int4_m16n8k16(n: int, k: int, code: int) -> Place:
    tile, lane, row8 = two_rows(n, k % 32 // 8)
    at = tile, k // 64, 0, lane, 2 * (k % 64 // 32) + k % 8 // 4
    return at, int4(code, 2 * (k % 4 // 2) + row8, k % 2)


def fp8_cpu16(n: int, k: int, code: int) -> Place:
    return (n // 8, k // 32, n % 8, k % 32), code


def fp8_m8n8k4(n: int, k: int, code: int) -> Place:
    at = n // 32, k // 32, k % 32 // 16, n % 32, k % 16 // 4
    return at, e4m3(code, k % 4 // 2, k % 2)


def fp8_m16n8k16(n: int, k: int, code: int) -> Place:
    tile, lane, row8 = two_rows(n, k % 32 // 8)
    at = tile, k // 64, k % 64 // 32, lane, 2 * (k % 8 // 4) + row8
    return at, e4m3(code, k % 4 // 2, k % 2)


def scales_cpu16(n: int, group: int, scale: int) -> Place:
    return (n // 8, group // 2, n % 8, group % 2), scale


def scales_m8n8k4(n: int, group: int, scale: int) -> Place:
    return (n // 32, group // 4, n % 32, group % 4), scale


def scales_m16n8k16(n: int, group: int, scale: int) -> Place:
    tile, lane, row8 = two_rows(n, group % 4)
    return (tile, group // 4, lane, row8), scale


PLACES = {
    ("nvfp4 codes", "cpu16"): nibble_cpu16,
    ("nvfp4 codes", "m8n8k4"): nvfp4_m8n8k4,
    ("nvfp4 codes", "m16n8k16"): nvfp4_m16n8k16,
    ("nvfp4 scales", "cpu16"): scales_cpu16,
    ("nvfp4 scales", "m8n8k4"): scales_m8n8k4,
    ("nvfp4 scales", "m16n8k16"): scales_m16n8k16,
    ("fp8 codes", "cpu16"): fp8_cpu16,
    ("fp8 codes", "m8n8k4"): fp8_m8n8k4,
    ("fp8 codes", "m16n8k16"): fp8_m16n8k16,
    ("int4 codes", "cpu16"): nibble_cpu16,
    ("int4 codes", "m8n8k4"): int4_m8n8k4,
    ("int4 codes", "m16n8k16"): int4_m16n8k16,
}
EVERY = pytest.mark.parametrize(("what", "layout"), PLACES)


def values(what: str, array: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """(row, column, value) of codes or scales in checkpoint order."""
    halves = what in ("nvfp4 codes", "int4 codes")
    for n, row in enumerate(array.tolist()):
        for c, byte in enumerate(row):
            if halves:
                yield n, 2 * c, byte & 15
                yield n, 2 * c + 1, byte >> 4
            else:
                yield n, c, byte


def expected(what: str, layout: str, array: np.ndarray) -> np.ndarray:
    shape = packed_shape(what, *array.shape, layout)
    words = what.endswith("codes") and layout != "cpu16"
    packed = np.zeros(shape, np.uint8).view(np.uint32 if words else np.uint8)
    for n, column, value in values(what, array):
        at, bits = PLACES[what, layout](n, column, value)
        packed[at] |= np.array(bits, packed.dtype)
    return packed.view(np.uint8)


def packed(what: str, layout: str, *siblings: np.ndarray) -> np.ndarray:
    rows = sum(map(len, siblings))
    out = np.full(packed_shape(what, rows, siblings[0].shape[1], layout), 0xA5, np.uint8)
    pack_into(out, what, siblings, layout)
    return out


def some_bytes(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(rows * columns).integers(0, 256, (rows, columns), np.uint8)


def test_every_form_is_described():
    assert PLACES.keys() == FORMS.keys()


@EVERY
@pytest.mark.parametrize("rows", [1, 32, 45, 96])
@pytest.mark.parametrize("units", [1, 3, 4.5])
def test_every_code_and_scale_lies_where_its_layout_says(what, layout, rows, units):
    array = some_bytes(rows, max(1, int(units * FORMS[what, layout].columns)))
    np.testing.assert_array_equal(packed(what, layout, array), expected(what, layout, array))


@pytest.mark.parametrize(("what", "layout"), [p for p in PLACES if p[0].endswith("codes")])
def test_all_pairs_of_neighbouring_bytes_are_packed(what, layout):
    pairs = np.arange(65536, dtype=np.uint16).view(np.uint8)
    array = pairs.reshape(-1, 8 * FORMS[what, layout].columns)
    np.testing.assert_array_equal(packed(what, layout, array), expected(what, layout, array))


@EVERY
def test_more_rows_than_are_packed_at_once_give_the_same(what, layout, monkeypatch):
    array = some_bytes(200, 2 * FORMS[what, layout].columns)
    whole = packed(what, layout, array)
    monkeypatch.setattr("onecat_jax.custom_calls.linear.packing._BLOCK_BYTES", 1)
    np.testing.assert_array_equal(packed(what, layout, array), whole)


@EVERY
@pytest.mark.parametrize("rows", [(64, 32, 40), (40, 64, 8)], ids=["whole blocks", "odd"])
def test_siblings_are_packed_as_one_array(what, layout, rows):
    array = some_bytes(sum(rows), FORMS[what, layout].columns)
    siblings = np.split(array, np.cumsum(rows)[:-1])
    np.testing.assert_array_equal(packed(what, layout, *siblings), packed(what, layout, array))


@EVERY
def test_a_cut_from_anywhere_in_a_file_is_packed_alike(what, layout):
    """Columns of a wider matrix, which starts at an odd byte of read-only memory."""
    columns = FORMS[what, layout].columns
    wide = np.frombuffer(b"x" + some_bytes(64, 3 * columns).tobytes(), np.uint8, offset=1)
    cut = wide.reshape(64, -1)[:, columns : 2 * columns]
    np.testing.assert_array_equal(packed(what, layout, cut), packed(what, layout, cut.copy()))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
@pytest.mark.filterwarnings("ignore:.*invalid value")
def test_dense_weights_are_cast_as_numpy_casts(stored, dtype):
    """All 16-bit values, NaN and infinity among them, in a number of rows that divides by little."""
    weight = (
        np.arange(65536 - 80, dtype=np.uint16).reshape(-1, 16).view(np.dtype(jnp.dtype(stored)))
    )
    route = LinearRoute(Policy(backend="plain"))
    built = build_linear([[DenseTensor(weight)]], route=route, dtype=jnp.dtype(dtype))
    with np.errstate(over="ignore"):
        cast = weight.astype(np.dtype(jnp.dtype(dtype)))
    found = np.asarray(built.weight)[0]
    numbers = ~np.isnan(cast)
    np.testing.assert_array_equal(~np.isnan(found), numbers)
    assert found[numbers].tobytes() == cast[numbers].tobytes()
