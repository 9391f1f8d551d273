"""What ranks hold of a checkpoint. Oracle: index lists written from the heads and features that a rank owns
(`sharding_oracle`), and the one-device parameters of a model that has those heads only.

Not covered: files (test_sharding_memory) and the arithmetic on the parts (test_sharding_linears, parity tests).
"""

import tracemalloc
from dataclasses import replace

import jax
import numpy as np
import pytest
import sharding_oracle as oracle
from checkpoints import SMALL, tensor_specs
from hypothesis import given, settings
from hypothesis import strategies as st

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import DenseTensor, LinearRoute, NVFP4Tensor
from onecat_jax.errors import EngineError
from onecat_jax.models.qwen3_5 import ModelConfig, build_params
from onecat_jax.models.slices import cut_of, cut_tensor, local_shape
from onecat_jax.models.spec import Section, TensorSpec
from onecat_jax.models.tensors import HostTensors
from onecat_jax.sharding import Placement

PROPERTIES = settings(max_examples=60, deadline=None)


def splits_groups(tensor: object, of: oracle.Held | None) -> bool:
    """Whether a part of an NVFP4 tensor isn't whole scale groups."""
    return (
        isinstance(tensor, NVFP4Tensor) and of is not None and of[0] == 1 and len(of[1]) % 16 != 0
    )


@PROPERTIES
@given(oracle.split_models(), st.booleans(), st.integers(0, 2**32))
def test_every_rank_gets_the_heads_and_features_that_it_owns(model, quantised, seed):
    config, ranks = model
    tensors = oracle.random_host_tensors(config, np.random.default_rng(seed), quantised)
    source = HostTensors(tensors, tensor_specs(config), ranks)
    for name, tensor in tensors.items():
        for rank in range(ranks):
            of = oracle.held(name, config, rank, ranks)
            with source.site([name]) as piece:
                if ranks > 1 and splits_groups(tensor, of):
                    with pytest.raises(EngineError, match="NVFP4 scales need a multiple of 16"):
                        piece(name, rank)
                    continue
                found = piece(name, rank)
            expected = oracle.part(tensor, of)
            assert type(found) is type(expected)
            np.testing.assert_array_equal(oracle.values(found), oracle.values(expected), name)


@PROPERTIES
@given(oracle.split_models())
def test_parts_of_all_ranks_make_up_the_tensor_each_index_equally_often(model):
    config, ranks = model
    for name, spec in tensor_specs(config).items():
        cuts = [cut_of(spec, rank, ranks) for rank in range(ranks)]
        if cuts[0] is None:
            assert all(cut is None for cut in cuts)
            assert local_shape(spec, ranks) == spec.shape
            continue
        dim = cuts[0].dim
        indices = [i for cut in cuts for start, stop in cut.spans for i in range(start, stop)]
        times = len(indices) // spec.shape[dim]
        assert sorted(indices) == [i for i in range(spec.shape[dim]) for _ in range(times)], name
        repeated = name.split(".")[-2] in ("k_proj", "v_proj")
        assert times == (max(1, ranks // config.num_key_value_heads) if repeated else 1)
        assert local_shape(spec, ranks)[dim] * ranks == len(indices)


@pytest.mark.parametrize("plain", [False, True], ids=["handlers", "plain, separate layers"])
@pytest.mark.parametrize("quantised", [False, True], ids=["dense", "nvfp4"])
@pytest.mark.parametrize(("kv_heads", "ranks"), [(4, 2), (4, 4), (2, 4), (1, 4)])
def test_a_rank_sees_the_weights_of_a_model_that_has_its_heads_only(
    kv_heads, ranks, quantised, plain
):
    config = geometry(kv_heads)
    tensors = oracle.random_host_tensors(config, np.random.default_rng(0), quantised)
    route = LinearRoute(Policy("plain" if plain else "auto"), separate=plain)
    options = {"route": route, "dtype": "float32", "loops": "none" if plain else "layers"}
    placement = Placement.of(ranks)
    whole = build_params(tensors, config, placement=placement, **options)
    for rank, device in enumerate(placement.devices):
        own = oracle.cut_for(tensors, config, rank, ranks)
        expected = build_params(own, config.local(ranks), **options)
        found = jax.tree.map(lambda a, d=device: on_device(a, d), whole)
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def geometry(kv_heads: int) -> ModelConfig:
    return replace(
        SMALL,
        num_attention_heads=8,
        num_key_value_heads=kv_heads,
        head_dim=16,
        linear_num_key_heads=4,
        linear_num_value_heads=8,
        intermediate_size=128,
    )


def on_device(array: jax.Array, device: jax.Device) -> jax.Array:
    (found,) = [s.data for s in array.addressable_shards if s.device == device]
    return found


def matrix_spec(n: tuple[Section, ...], k: tuple[Section, ...]) -> TensorSpec:
    return TensorSpec("linear", (n, k))


WHOLE_K = (Section("embed", 64, 64),)


def test_a_part_of_one_run_is_a_view():
    weight = np.zeros((8, 64), np.float32)
    spec = matrix_spec((Section("mlp", 8, 8),), WHOLE_K)
    found = cut_tensor("x", DenseTensor(weight), spec, 1, 4)
    assert isinstance(found, DenseTensor)
    assert np.shares_memory(found.weight, weight[2:4])
    columns = matrix_spec((Section("embed", 8, 8),), (Section("mlp", 64, 64),))
    packed = NVFP4Tensor(np.zeros((8, 32), np.uint8), np.zeros((8, 4), np.uint8), 1.0)
    part = cut_tensor("x", packed, columns, 3, 4)
    assert isinstance(part, NVFP4Tensor)
    assert np.shares_memory(part.codes, packed.codes[:, 24:])
    assert np.shares_memory(part.scales, packed.scales[:, 3:])


def test_a_part_of_several_runs_copies_no_more_than_itself():
    sections = (Section("key_heads", 1000, 4), Section("value_heads", 2000, 4))
    spec = matrix_spec(sections, (Section("embed", 256, 256),))
    weight = np.zeros((3000, 256), np.float32)
    tracemalloc.start()
    try:
        found = cut_tensor("x", DenseTensor(weight), spec, 1, 4)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(found, DenseTensor)
    assert found.weight.nbytes == weight.nbytes // 4 <= peak < 1.01 * weight.nbytes // 4


def test_one_rank_holds_the_very_tensor():
    tensor = DenseTensor(np.zeros((8, 64), np.float32))
    assert cut_tensor("x", tensor, matrix_spec((Section("mlp", 8, 8),), WHOLE_K), 0, 1) is tensor


def test_a_tensor_split_along_both_dimensions_is_refused():
    spec = matrix_spec((Section("mlp", 8, 8),), (Section("heads", 64, 4),))
    with pytest.raises(ValueError, match=r"dimensions \[0, 1\] of a tensor \[8, 64\]"):
        cut_of(spec, 0, 2)


def test_tensors_cut_for_another_number_of_ranks_are_refused():
    tensors = HostTensors({}, tensor_specs(SMALL), ranks=2)
    with pytest.raises(ValueError, match="cut for 2 ranks, 1 devices"):
        build_params(tensors, SMALL, route=LinearRoute(), dtype="float32", loops="layers")
