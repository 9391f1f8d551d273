"""What `convert` writes: names, axes, values, and the files beside them.

Oracle: the checkpoint that was converted, cut with numpy by the geometry of its configuration; orbax alone, without any of our
code, reads the arrays. Not covered: loading it into a model (test_convert_load), damage (test_convert_damage).
"""

import json
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
from checkpoints import (
    SMALL,
    TIED,
    Style,
    quantise,
    random_tensors,
    tensor_specs,
    write_checkpoint,
)
from conversions import FOUR, QWEN_27B, bits, converted, flattened, host_tensors, parts

from onecat_jax.loading import Checkpoint
from onecat_jax.loading.hub import embedded
from onecat_jax.loading.orbax.canonical import CanonicalArray, arrays_of
from onecat_jax.loading.orbax.convert import convert
from onecat_jax.loading.orbax.manifest import MANIFEST
from onecat_jax.loading.orbax.tree import nested

STYLES = {
    "bfloat16": Style(),
    "float16": Style(dtype=np.float16),
    "float32": Style(dtype=np.float32),
    "modelopt": Style(naming="modelopt"),
    "compressed-tensors": Style(naming="compressed-tensors", shards=3, nested=True),
    "mixed by layer": Style(naming="modelopt", quantised=lambda m: m.startswith("layers.1.mlp")),
}
ROWS = {
    "query": (0, 64),
    "key": (64, 128),
    "value": (128, 256),
}  # of FOUR: 4 heads of 16 twice, 8 of 16


def stored_by_orbax(out: Path) -> dict[str, np.ndarray]:
    """Every array as orbax alone reads it."""
    with ocp.StandardCheckpointer() as checkpointer:
        return dict(flattened(checkpointer.restore(out / "params")))


def expected(name: str, tensor: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays that a tensor must be stored as."""
    module, _, leaf = name.rpartition(".")
    named = {part or leaf: array for part, array in tensor.items()}
    if not name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        return {f"{module}.{leaf}".lstrip("."): array for leaf, array in named.items()}
    whole = {f"{module}.{leaf}": array for leaf, array in named.items() if not array.shape}
    cut = {leaf: array for leaf, array in named.items() if array.shape}
    return whole | {
        f"{module}.{section}.{leaf}": array[start:stop]
        for section, (start, stop) in ROWS.items()
        for leaf, array in cut.items()
    }


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
def test_orbax_alone_reads_every_tensor_as_it_was_loaded(tmp_path: Path, style: Style):
    source, out = converted(tmp_path, FOUR, style)
    wanted: dict[str, np.ndarray] = {}
    for name, tensor in host_tensors(source).items():
        wanted |= expected(name, parts(tensor))
    found = stored_by_orbax(out)
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        kind = ml_dtypes.float8_e4m3fn if name.endswith(".scales") else array.dtype
        assert found[name].dtype == kind, name
        assert found[name].shape == array.shape, name
        assert bits(found[name]) == bits(array), name


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
@pytest.mark.parametrize("config", [SMALL, TIED], ids=["untied", "tied"])
def test_the_conversion_reads_as_the_checkpoint_does(tmp_path: Path, config: Any, style: Style):
    source, out = converted(tmp_path, config, style)
    one, other = host_tensors(source), host_tensors(out)
    assert one.keys() == other.keys()
    assert any(name.startswith("mtp.") for name in one)
    for name, tensor in one.items():
        assert type(tensor) is type(other[name])
        for part, array in parts(tensor).items():
            again = parts(other[name])[part]
            assert (again.dtype, again.shape, bits(again)) == (
                array.dtype,
                array.shape,
                bits(array),
            ), name


def test_global_scales_are_multipliers_whatever_the_source_stored(tmp_path: Path):
    """The writer of the checkpoint knows the multiplier; compressed-tensors stores its inverse."""
    for naming in ("modelopt", "compressed-tensors"):
        _, out = converted(tmp_path / naming, FOUR, Style(naming=naming))
        found = stored_by_orbax(out)
        for name, values in random_tensors(FOUR).items():
            scale = found.get(name.removesuffix("weight") + "global_scale")
            if scale is not None:
                assert bits(scale) == bits(quantise(values).multiplier), name


def test_values_decode_as_documented(tmp_path: Path):
    """E2M1(code) * scale * global_scale, low nibble first, gives the matrix of the writer's own decoder."""
    _, out = converted(tmp_path, FOUR, Style(naming="modelopt"))
    mlp = nested(stored_by_orbax(out))["layers"]["0"]["mlp"]["up_proj"]
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    codes = np.stack([mlp["codes"] & 15, mlp["codes"] >> 4], -1).reshape(len(mlp["codes"]), -1)
    scales = np.repeat(mlp["scales"].astype(np.float64), 16, axis=1)
    values = table[codes] * scales * mlp["global_scale"]
    written = quantise(random_tensors(FOUR)["layers.0.mlp.up_proj.weight"]).values()
    np.testing.assert_array_equal(values, written)


def test_a_checkpoint_without_an_mtp_head_stays_without(tmp_path: Path):
    _, out = converted(tmp_path, FOUR, Style(mtp=False))
    assert not any(name.startswith("mtp.") for name in host_tensors(out))


def test_what_lies_beside_the_weights_is_copied_and_weights_are_not(tmp_path: Path):
    out = convert("tiny", tmp_path / "out").folder
    for path in embedded("target").iterdir():
        copy = out / path.name
        assert copy.exists() == (path.suffix != ".safetensors"), path.name
        if copy.exists():
            assert copy.read_bytes() == path.read_bytes()


def test_an_index_is_not_copied_but_a_licence_is(tmp_path: Path):
    source = write_checkpoint(tmp_path / "source", SMALL, Style(shards=2))
    (source / "LICENSE").write_text("free")
    out = convert(source, tmp_path / "out").folder
    names = {path.name for path in out.iterdir()}
    assert names == {"LICENSE", "config.json", "generation_config.json", MANIFEST, "params"}


def test_the_manifest_says_what_was_written(tmp_path: Path):
    source, out = converted(tmp_path, FOUR, Style(naming="compressed-tensors"))
    manifest = json.loads((out / MANIFEST).read_text())
    assert manifest["version"] == 1
    assert manifest["converted_from"] == source.name
    stored = stored_by_orbax(out)
    assert manifest["bytes"] == sum(array.nbytes for array in stored.values())
    entry = manifest["tensors"]["layers.0.linear_attn.in_proj_qkv.weight"]
    assert (entry["format"], entry["source"]) == ("nvfp4", "NVFP4 (compressed-tensors)")
    assert entry["shape"] == [256, 64]
    key = entry["arrays"]["layers.0.linear_attn.in_proj_qkv.key.codes"]
    assert (key["dtype"], key["shape"]) == ("uint8", [64, 32])
    assert manifest["tensors"]["norm.weight"]["source"] == "BF16"
    sizes = {name: (out / name).stat().st_size for name in manifest["files"]}
    assert sizes == manifest["files"]
    assert {path for path in (out / "params").rglob("*") if path.is_file()} == {
        out / n for n in sizes
    }


def test_a_converted_checkpoint_opens_with_the_configuration_of_its_source(tmp_path: Path):
    source, out = converted(tmp_path, SMALL, Style(naming="modelopt"))
    one, other = Checkpoint.open(source), Checkpoint.open(out)
    for field in ("config", "generation_config", "quantization", "quantization_file"):
        assert getattr(one, field) == getattr(other, field)


def test_bytes_done_grow_to_the_bytes_in_all(tmp_path: Path):
    source = write_checkpoint(tmp_path / "source", SMALL)
    calls: list[tuple[int, int]] = []
    done = convert(source, tmp_path / "out", progress=lambda *call: calls.append(call))
    assert [total for _, total in calls] == [done.nbytes] * done.arrays
    assert [d for d, _ in calls] == sorted(d for d, _ in calls)
    assert calls[-1][0] == done.nbytes


def arrays_27b() -> list[CanonicalArray]:
    """The arrays of a large model in bfloat16 and in NVFP4."""
    found = []
    for name, spec in tensor_specs(QWEN_27B).items():
        found += arrays_of(name, spec, "dense", np.dtype(ml_dtypes.bfloat16))
        if spec.kind == "linear":
            found += arrays_of(name, spec, "nvfp4", np.dtype(np.uint8))
    return found


def test_chunks_divide_arrays_and_are_neither_tiny_nor_huge():
    for array in arrays_27b():
        chunk = array.chunk_shape
        counts = [size // each for size, each in zip(array.shape, chunk, strict=True)]
        assert [n * each for n, each in zip(counts, chunk, strict=True)] == list(array.shape)
        nbytes = array.nbytes // prod(counts)
        assert nbytes <= 2**25 + 2**20, array
        assert nbytes >= 2**14 or prod(counts) == 1, array


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_a_rank_holds_of_a_large_array_is_a_row_of_whole_chunks(ranks: int):
    for array in arrays_27b():
        for rank in range(ranks):
            extent = array.extent(rank, ranks)
            if array.nbytes >= 2**20:
                for part, chunk in zip(extent, array.chunk_shape, strict=True):
                    assert part.start % chunk == part.stop % chunk == 0, array


def test_arrays_lie_in_their_chunks(tmp_path: Path):
    """Read from the index that orbax keeps, for a tensor of several chunks along each dimension."""
    wide = replace(FOUR, intermediate_size=2048)
    _, out = converted(tmp_path, wide)
    with ocp.StandardCheckpointer() as checkpointer:
        metadata = dict(checkpointer.metadata(out / "params").item_metadata)
    mlp = metadata["layers"]["0"]["mlp"]
    assert mlp["up_proj"]["weight"].storage.chunk_shape == (256, 64)
    assert mlp["down_proj"]["weight"].storage.chunk_shape == (64, 256)
