"""How split parameters lie on the mesh. Oracle: the shardings of the placed arrays."""

import jax
import numpy as np
import pytest
import sharding_oracle as oracle
from checkpoints import SMALL, TIED
from jax.sharding import PartitionSpec

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import LinearRoute
from onecat_jax.models.qwen3_5 import ModelConfig, Params, build_params
from onecat_jax.models.qwen3_5.specs import param_specs
from onecat_jax.sharding import TP, Placement


def placed(config: ModelConfig, quantised: bool, plain: bool) -> Params:
    tensors = oracle.random_host_tensors(config, np.random.default_rng(0), quantised)
    route = LinearRoute(Policy("plain" if plain else "auto"), separate=plain)
    return build_params(
        tensors,
        config,
        route=route,
        dtype="float32",
        loops="none" if plain else "layers",
        placement=Placement.of(2),
    )


@pytest.mark.parametrize("plain", [False, True], ids=["handlers", "plain, separate layers"])
@pytest.mark.parametrize("quantised", [False, True], ids=["dense", "nvfp4"])
@pytest.mark.parametrize("config", [SMALL, TIED], ids=["untied", "tied"])
def test_specs_from_the_structure_are_those_of_the_placed_arrays(config, quantised, plain):
    params = placed(config, quantised, plain)
    assert jax.tree.map(lambda a: a.sharding.spec, params) == param_specs(params)


def test_shapes_and_tracers_have_the_same_specs_as_arrays():
    params = placed(SMALL, quantised=True, plain=False)
    expected = param_specs(params)
    assert param_specs(jax.eval_shape(lambda p: p, params)) == expected
    seen = []
    jax.jit(lambda p: seen.append(param_specs(p))).trace(params)
    assert seen == [expected]


def test_only_norms_are_the_same_on_every_rank():
    specs = param_specs(placed(SMALL, quantised=False, plain=False))
    paths = jax.tree_util.tree_leaves_with_path(specs)
    whole = {path[-1].name for path, spec in paths if spec == PartitionSpec()}
    assert whole == {"input_norm", "q_norm", "k_norm", "out_norm", "norm"}
    assert {spec for _, spec in paths} == {PartitionSpec(), PartitionSpec(TP)}


def test_one_rank_needs_no_mesh():
    config = SMALL
    tensors = oracle.random_host_tensors(config, np.random.default_rng(0), quantised=True)
    device = jax.devices()[2]
    params = build_params(
        tensors,
        config,
        route=LinearRoute(),
        dtype="float32",
        loops="layers",
        placement=Placement((device,)),
    )
    assert {leaf.sharding for leaf in jax.tree.leaves(params)} == {
        jax.sharding.SingleDeviceSharding(device)
    }
