"""Drafts read from files are the drafts that were written: published and older tensor names, tables of ids, refusals.

Files are written by the safetensors package. Oracle: the same weights handed over without files.
"""

import json

import jax
import numpy as np
import pytest
from dflash_cases import DFLASH1, TARGET_JSON, config_json, host_tensors, random_weights
from safetensors.numpy import save_file

from onecat_jax.custom_calls.linear import LinearRoute
from onecat_jax.errors import CheckpointError
from onecat_jax.loading import Checkpoint
from onecat_jax.loading.sources import find_sources
from onecat_jax.loading.tensor_source import tensor_source
from onecat_jax.loading.verify import verify
from onecat_jax.models.dflash import DFlashConfig, build_draft, tensor_specs
from onecat_jax.models.qwen3_5 import ModelConfig
from onecat_jax.sharding import Placement
from onecat_jax.speculation.config import SpeculativeConfig
from onecat_jax.speculation.setup import open_draft


def write(folder, tensors, config):
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def read(folder, ranks=1, progress=lambda _: None):
    checkpoint = Checkpoint.open(folder)
    config = DFlashConfig.from_hf(checkpoint.config)
    sources = find_sources(checkpoint, tensor_specs(config))
    return build_draft(
        tensor_source(checkpoint, sources, ranks),
        config,
        route=LinearRoute(),
        dtype="float32",
        placement=Placement.of(ranks),
        progress=progress,
    )


def one_layer_of_old_names():
    """A v1 draft of one layer with ids of its own, under the names of older trainers."""
    own = {"num_hidden_layers": 1, "layer_types": None, "draft_vocab_size": 64}
    config = config_json(DFLASH1, **own)
    weights = random_weights(config)
    ids = np.sort(np.random.default_rng(0).choice(256, 64, replace=False))
    weights["d2t"] = (ids - np.arange(64)).astype(np.int64)
    stored = {name.replace("layers.0.", "midlayer."): value for name, value in weights.items()}
    stored["t2d"] = np.isin(np.arange(256), ids)
    return config, weights, stored, ids


def test_older_names_and_ids_of_its_own(tmp_path):
    config, weights, stored, ids = one_layer_of_old_names()
    write(tmp_path, stored, config)
    found, parsed = read(tmp_path), DFlashConfig.from_hf(config)
    expected = build_draft(
        host_tensors(weights, parsed), parsed, route=LinearRoute(), dtype="float32"
    )
    assert jax.tree.all(jax.tree.map(np.array_equal, found, expected))
    assert np.array_equal(found.target_ids, ids)


def test_all_bytes_that_are_read_are_reported(tmp_path):
    config = config_json()
    weights = random_weights(config)
    write(tmp_path, weights, config)
    seen = []
    read(tmp_path, ranks=2, progress=seen.append)
    twice = [w.nbytes for n, w in weights.items() if "k_proj" in n or "v_proj" in n]
    assert sum(seen) == sum(w.nbytes for w in weights.values()) + sum(twice)


def test_ids_that_the_target_doesn_t_have_are_refused(tmp_path):
    config, _, stored, _ = one_layer_of_old_names()
    stored["d2t"][-1] += 500
    write(tmp_path, stored, config)
    with pytest.raises(
        CheckpointError, match=r"d2t leads to ids \d+ to \d+, the target has 0 to 255"
    ):
        read(tmp_path)


def test_a_table_of_numbers_that_aren_t_whole_is_refused(tmp_path):
    config, _, stored, _ = one_layer_of_old_names()
    stored["d2t"] = stored["d2t"].astype(np.float32)
    write(tmp_path, stored, config)
    with pytest.raises(CheckpointError, match=r"d2t .* has a wrong dtype, needed I32, I64"):
        read(tmp_path)


def test_a_head_of_its_own_is_needed_for_ids_of_its_own(tmp_path):
    config, _, stored, _ = one_layer_of_old_names()
    del stored["lm_head.weight"]
    write(tmp_path, stored, config)
    with pytest.raises(CheckpointError, match=r"lm_head.weight is missing, needed \[64, 64\]"):
        read(tmp_path)


@pytest.mark.parametrize(
    "name", ["layers.1.mlp_conv.base_kernel", "candidate_selector.successor_codebook"]
)
def test_a_missing_part_is_named(tmp_path, name):
    config = config_json()
    weights = random_weights(config)
    del weights[name]
    write(tmp_path, weights, config)
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        read(tmp_path)


def test_tensors_of_another_kind_of_draft_are_refused(tmp_path):
    config = config_json()
    weights = random_weights(config)
    weights["markov_head.weight"] = np.zeros((4, 4), np.float32)
    write(tmp_path, weights, config)
    with pytest.raises(CheckpointError, match=r"markov_head.weight .* is unknown"):
        read(tmp_path)


def test_a_mask_row_in_a_pickle_is_refused_by_name(tmp_path):
    json_target = TARGET_JSON | {"hidden_size": 64, "vocab_size": 256, "num_hidden_layers": 4}
    target = ModelConfig.from_hf(json_target | {"layer_types": ["full_attention"] * 4})
    config = config_json()
    write(tmp_path, random_weights(config), config)
    asked = SpeculativeConfig("dflash", model=str(tmp_path))
    assert open_draft(asked, "any", target) is not None
    (tmp_path / "mask_embedding.pt").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"mask_embedding.pt holds .* as a pickle"):
        open_draft(asked, "any", target)


def test_every_value_is_looked_at(tmp_path):
    config, _, stored, _ = one_layer_of_old_names()
    stored["fc.weight"][3, 4] = np.nan
    write(tmp_path, stored, config)
    checkpoint = Checkpoint.open(tmp_path)
    sources = find_sources(checkpoint, tensor_specs(DFlashConfig.from_hf(config)))
    found = {name: kind for name, (kind, _) in verify(checkpoint, sources)}
    assert [name for name, kind in found.items() if kind != "ok"] == ["fc.weight"]
    assert "d2t" in found
