"""Stored scales of a float8 cache: found under every exporter's names, applied where the cache is float8, and nowhere else.

Oracles: the scales that the test wrote; the same model with a float32 cache, which they must not change; and, where keys and
values are beyond float8's range, the saturation that they prevent.
"""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from checkpoints import SMALL, stored_tensors, write_checkpoint, write_tensors
from format_models import MODEL, Model, load, logits, write_model
from model_harness import Harness, relative

from onecat_jax.cli.main import main
from onecat_jax.errors import CheckpointError
from onecat_jax.loading import Checkpoint
from onecat_jax.loading.cache_scales import find_cache_scales
from onecat_jax.loading.orbax.convert import convert

ATTENTION = "model.layers.1.self_attn"  # of SMALL
NAMES = {
    "modelopt": ("k_proj.k_scale", "v_proj.v_scale"),
    "compressed-tensors": ("k_scale", "v_scale"),
    "quark": ("k_proj.output_scale", "v_proj.output_scale"),
}


def number(value: float, dtype: type = np.float32) -> np.ndarray:
    return np.asarray(value, dtype)


def with_scales(folder: Path, extra: dict[str, np.ndarray]) -> Checkpoint:
    write_checkpoint(folder, SMALL)
    write_tensors(folder, stored_tensors(SMALL) | extra)
    return Checkpoint.open(folder)


@pytest.mark.parametrize("exporter", NAMES)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_scales_are_found_under_the_names_of_every_exporter(tmp_path: Path, exporter, dtype, shape):
    key, value = NAMES[exporter]
    extra = {
        f"{ATTENTION}.{key}": number(0.25, dtype).reshape(shape),
        f"{ATTENTION}.{value}": number(0.5, dtype).reshape(shape),
    }
    found = find_cache_scales(with_scales(tmp_path, extra))
    assert found.layers == {1: (0.25, 0.5)}
    assert (found.of(1), found.of(0), found.trivial) == ((0.25, 0.5), (1.0, 1.0), False)


def test_one_scale_may_stand_for_both(tmp_path: Path):
    extra = {f"{ATTENTION}.kv_scale": number(0.25)}
    assert find_cache_scales(with_scales(tmp_path, extra)).of(1) == (0.25, 0.25)


def test_scales_of_the_mtp_head_and_of_activations_are_left_alone(tmp_path: Path):
    extra = {
        "mtp.layers.0.self_attn.k_proj.k_scale": number(0.25),
        f"{ATTENTION}.q_proj.output_scale": number(0.25),
        f"{ATTENTION}.q_scale": number(0.25),
    }
    assert find_cache_scales(with_scales(tmp_path, extra)).layers == {}


def test_a_checkpoint_without_scales_and_one_of_ones_change_nothing(tmp_path: Path):
    assert find_cache_scales(with_scales(tmp_path, {})).trivial
    extra = {f"{ATTENTION}.k_scale": number(1.0)}
    found = find_cache_scales(with_scales(tmp_path, extra))
    assert (found.layers, found.trivial) == ({1: (1.0, 1.0)}, True)


BAD = {
    "zero": ({"k_scale": number(0)}, "k_scale (model.safetensors) is 0.0; a finite number above"),
    "negative": ({"v_scale": number(-2)}, "v_scale (model.safetensors) is -2.0"),
    "nan": ({"k_scale": number(np.nan)}, "is nan; a finite number above zero is needed"),
    "infinite": ({"k_proj.k_scale": number(np.inf)}, "is inf; a finite"),
    "per head": (
        {"k_scale": np.ones(2, np.float32)},
        "k_scale (model.safetensors, F32 [2]) scales a key/value cache; one number of BF16 or F16",
    ),
    "integers": ({"k_scale": np.ones((), np.int32)}, "I32 []) scales a key/value cache"),
    "two that differ": (
        {"k_scale": number(0.5), "k_proj.k_scale": number(0.25)},
        "another tensor says 0.",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_scale_is_refused_by_name(tmp_path: Path, kind: str):
    extra, message = BAD[kind]
    checkpoint = with_scales(tmp_path, {f"{ATTENTION}.{k}": v for k, v in extra.items()})
    with pytest.raises(CheckpointError) as caught:
        find_cache_scales(checkpoint)
    assert message in str(caught.value)
    assert main(["info", str(tmp_path)]) == 2


# What they do. Keys and values of this model reach far beyond the largest float8, 448.

TOKENS = np.random.default_rng(1).integers(0, MODEL.vocab_size, 20).tolist()
SCALES = {
    "model.layers.3.self_attn.k_proj.k_scale": number(11.3),
    "model.layers.3.self_attn.v_proj.v_scale": number(7.7),
}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A dense model with keys and values in the thousands, whose attention is soft all the same."""
    model = write_model(tmp_path_factory.mktemp("large"), lambda _: "", record={}, extra=SCALES)
    checkpoint = Checkpoint.open(model.folder)
    tensors = {name: np.array(checkpoint.array(name)) for name in checkpoint.tensors}
    attention = "model.layers.3.self_attn"
    tensors[f"{attention}.k_norm.weight"][:] = 600
    tensors[f"{attention}.q_norm.weight"][:] = 1 / 600 - 1
    tensors[f"{attention}.v_proj.weight"] *= ml_dtypes.bfloat16(700)
    tensors[f"{attention}.o_proj.weight"] *= ml_dtypes.bfloat16(1 / 700)
    write_tensors(model.folder, tensors)
    return model


def run(harness: Harness, cache: str) -> np.ndarray:
    """Logits with a cache of that dtype."""
    return logits(harness, harness.step, TOKENS, 16, cache)


@pytest.mark.parametrize("ranks", [1, 4])
def test_scales_do_not_change_what_a_float32_cache_gives(large: Model, ranks: int):
    """Both ways of reading one checkpoint, with a cache that loses nothing."""
    plain = load(large.folder, ranks)
    scaled = load(large.folder, ranks, kv_cache_dtype="fp8_e4m3")
    assert scales_of(plain) is None
    np.testing.assert_array_equal(scales_of(scaled), np.float32([[11.3, 7.7]]))
    expected = run(plain, "float32")
    assert relative(run(scaled, "float32"), expected, float(np.ptp(expected))) < 1e-5


@pytest.mark.parametrize("cache", ["float8_e4m3fn", "float8_e5m2"])
def test_scales_keep_a_float8_cache_from_saturating(large: Model, cache: str):
    name = {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}[cache]
    plain, scaled = load(large.folder), load(large.folder, kv_cache_dtype=name)
    exact = run(plain, "float32")
    span = float(np.ptp(exact))
    error = relative(run(scaled, cache), exact, span)
    assert error < 0.1
    if cache == "float8_e4m3fn":  # the other one reaches beyond these keys
        assert relative(run(plain, cache), exact, span) > 3 * error


def scales_of(harness: Harness) -> np.ndarray | None:
    (found,) = [s.attention.cache_scales for s in harness.params.segments if s.attention]
    return None if found is None else np.asarray(found)


# What people are told


@pytest.mark.parametrize(
    ("cache", "used"), [("auto", "not used by this float32 cache"), ("fp8_e5m2", "; used")]
)
def test_info_says_what_becomes_of_them(large: Model, capsys, cache: str, used: str):
    assert main(["info", str(large.folder), "--kv-cache-dtype", cache]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if "cache scales" in x]
    assert line.startswith("  cache scales   stored for 1 layers: keys 11.3, values 7.7")
    assert line.endswith(used)


def test_a_conversion_that_would_lose_them_is_refused(large: Model, tmp_path: Path):
    with pytest.raises(CheckpointError, match="stores scales of a key/value cache"):
        convert(large.folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
