"""The safetensors reader. Oracle: the safetensors package writes (and refuses) the same bytes.

Not covered: files that change while they are mapped.
"""

import json
from contextlib import suppress
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from onecat_jax.errors import CheckpointError
from onecat_jax.loading.dtypes import DTYPES
from onecat_jax.loading.safetensors_file import SafetensorsFile

DTYPE_NAMES = sorted(DTYPES)


def write(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    """A safetensors file of a header (JSON value or raw bytes) and data, with any header length."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + data)
    return path


def entry(dtype: str, shape: object, begin: object, end: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 0, 4)])
def test_views_hold_the_bytes_that_were_written(tmp_path: Path, dtype: str, shape: tuple[int, ...]):
    kind = DTYPES[dtype]
    count = int(np.prod(shape)) * kind.itemsize
    raw = np.random.default_rng(1).integers(0, 2, count, np.uint8).tobytes()
    written = np.frombuffer(raw, kind).reshape(shape)
    save_file({"a": written, "b": np.arange(3.0)}, tmp_path / "x.safetensors")
    file = SafetensorsFile.open(tmp_path / "x.safetensors")
    read = file.array("a")
    assert (read.dtype, read.shape, read.tobytes()) == (kind, shape, raw)
    assert file.tensors["a"].dtype == dtype
    np.testing.assert_array_equal(file.array("b"), np.arange(3.0))


def test_views_are_read_only_and_share_one_map(tmp_path: Path):
    save_file({"a": np.ones(4), "b": np.ones(2)}, tmp_path / "x.safetensors")
    file = SafetensorsFile.open(tmp_path / "x.safetensors")
    assert not file.array("a").flags.writeable
    assert file.array("a").base is file.array("b").base


def test_a_header_that_leaves_data_unaligned_reads_the_same(tmp_path: Path):
    values = np.arange(6, dtype=np.float32).astype(ml_dtypes.bfloat16)
    header = json.dumps({"a": entry("BF16", [6], 0, 12)}).encode()
    for pad in range(4):
        path = write(tmp_path / f"{pad}.safetensors", header + b" " * pad, values.tobytes())
        np.testing.assert_array_equal(SafetensorsFile.open(path).array("a"), values)


def test_metadata_is_no_tensor(tmp_path: Path):
    save_file({"a": np.ones(1)}, tmp_path / "x.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile.open(tmp_path / "x.safetensors")
    assert (dict(file.metadata), set(file.tensors)) == ({"format": "pt"}, {"a"})


A4 = entry("U8", [4], 0, 4)
BAD_HEADERS = {
    "no object": ([1], b"", "a JSON list, an object is needed"),
    "entry is no object": ({"a": 3}, b"", "needs dtype, shape and data_offsets, found 3"),
    "entry lacks offsets": ({"a": {"dtype": "U8", "shape": []}}, b"", "needs dtype, shape and"),
    "unknown dtype": ({"a": entry("F4", [4], 0, 2)}, b"12", "dtype 'F4', which is unknown; known:"),
    "dtype is no string": ({"a": A4 | {"dtype": ["U8"]}}, b"1234", "dtype ['U8']"),
    "negative dimension": ({"a": entry("U8", [-4], 0, 4)}, b"1234", "has shape [-4]"),
    "fractional dimension": ({"a": entry("U8", [4.0], 0, 4)}, b"1234", "has shape [4.0]"),
    "boolean dimension": ({"a": entry("U8", [True], 0, 1)}, b"1", "has shape [True]"),
    "shape is no list": ({"a": entry("U8", 4, 0, 4)}, b"1234", "has shape 4"),
    "huge dimension": ({"a": entry("U8", [2**70], 0, 4)}, b"1234", "whole numbers is needed"),
    "huge empty shape": ({"a": entry("F32", [2**40, 2**40, 0], 0, 0)}, b"", "the limit is 2**62"),
    "too many dimensions": ({"a": entry("U8", [1] * 33, 0, 1)}, b"1", "up to 32 whole numbers"),
    "offsets reversed": ({"a": entry("U8", [4], 4, 0)}, b"1234", "begin <= end, are needed"),
    "three offsets": ({"a": A4 | {"data_offsets": [0, 1, 2]}}, b"1234", "begin and end, begin <="),
    "wrong size": ({"a": entry("F32", [4], 0, 4)}, b"1234", "needs 16 bytes, data_offsets [0, 4]"),
    "cut off": ({"a": A4}, b"123", "is cut off: tensor 'a' ends at byte"),
    "overlap": ({"a": A4, "b": entry("U8", [3], 2, 5)}, b"12345", "inside tensor 'a'"),
    "same place": ({"a": A4, "b": A4}, b"1234", "inside tensor 'a'"),
    "hole": ({"a": A4, "b": entry("U8", [1], 5, 6)}, b"123456", "belong to no tensor"),
    "rest": ({"a": A4}, b"12345", "1 bytes belong to no tensor"),
    "metadata of numbers": ({"__metadata__": {"a": 1}}, b"", "must map names to strings"),
    "metadata is a list": ({"__metadata__": []}, b"", "must map names to strings"),
    "not JSON": (b"{'a'", b"", "the header isn't valid JSON"),
    "not UTF-8": (b'{"\xff": 1}', b"", "the header isn't valid JSON"),
    "endless nesting": (b'{"a":' * 100_000, b"", "the header isn't valid JSON"),
    "duplicate name": (b'{"a":1,"a":2}', b"", "the header names 'a' twice"),
    "empty header": (b"", b"", "the header isn't valid JSON"),
}


@pytest.mark.parametrize("kind", BAD_HEADERS)
def test_a_bad_header_is_refused_by_name(tmp_path: Path, kind: str):
    header, data, message = BAD_HEADERS[kind]
    path = write(tmp_path / "bad.safetensors", header, data)
    with pytest.raises(CheckpointError) as caught:
        SafetensorsFile.open(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 bytes; a safetensors file starts with 8 bytes"),
        (b"\x01\x00\x00", "has 3 bytes"),
        ((2**63).to_bytes(8, "little") + b"{}", "the limit is 100000000"),
        ((50).to_bytes(8, "little") + b"{}", "the header needs 58 bytes, the file has 10"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "run 'git lfs pull'"),
    ],
)
def test_a_bad_start_of_the_file_is_refused_with_numbers(
    tmp_path: Path, content: bytes, message: str
):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"bad\.safetensors") as caught:
        SafetensorsFile.open(path)
    assert message in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(CheckpointError, match="can't be read: No such file"):
        SafetensorsFile.open(tmp_path / "none.safetensors")


def test_a_folder_is_no_file(tmp_path: Path):
    with pytest.raises(CheckpointError, match="can't be read"):
        SafetensorsFile.open(tmp_path)


def test_a_file_that_shrinks_after_opening_is_refused(tmp_path: Path):
    path = write(tmp_path / "x.safetensors", {"a": A4}, b"1234")
    file = SafetensorsFile.open(path)
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(CheckpointError, match="had more when it was opened"):
        file.array("a")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "f.safetensors"


def open_everything(path: Path) -> None:
    file = SafetensorsFile.open(path)
    for name in file.tensors:
        file.array(name).tobytes()


@given(st.binary(max_size=200), st.integers(0, 64), st.binary(max_size=16))
@settings(max_examples=100, deadline=None)
def test_random_bytes_give_a_checkpoint_error_or_nothing(
    scratch: Path, header: bytes, length: int, data: bytes
):
    write(scratch, header, data, length)
    with suppress(CheckpointError):
        open_everything(scratch)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(DTYPE_NAMES) | json_values,
        "shape": st.lists(st.integers(-1, 2**66), max_size=3) | json_values,
        "data_offsets": st.lists(st.integers(-1, 2**66), max_size=3) | json_values,
    }
)


headers = st.dictionaries(st.text(max_size=4), entries | json_values, max_size=3)


@given(headers, st.binary(max_size=8))
@example({"a": entry("U8", [0, 2**61], 0, 0)}, b"")
@settings(max_examples=150, deadline=None)
def test_random_headers_give_a_checkpoint_error_or_nothing(
    scratch: Path, header: dict[str, object], data: bytes
):
    write(scratch, header, data)
    with suppress(CheckpointError):
        open_everything(scratch)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_one_changed_byte_never_gives_another_error(scratch: Path, data: st.DataObject):
    save_file({"a": np.arange(4, dtype=np.int16), "b": np.ones((2, 2), np.float16)}, scratch)
    content = bytearray(scratch.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] = data.draw(st.integers(0, 255))
    scratch.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with suppress(CheckpointError):
        open_everything(scratch)
