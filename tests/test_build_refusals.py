"""Formats that load but can't be fused are refused with the tensors' names, before anything is placed.

Oracle: the sentence itself.
"""

import pytest
from checkpoints import SMALL, Style, default_quantised, write_checkpoint

from onecat_jax.custom_calls.linear import LinearRoute
from onecat_jax.errors import CheckpointError
from onecat_jax.loading import Checkpoint, load_tensors
from onecat_jax.models.qwen3_5 import build_params, tensor_specs


def all_but_up(module: str) -> bool:
    return default_quantised(module) and not module.endswith("up_proj")


@pytest.mark.parametrize(
    ("quantised", "message"),
    [
        (
            all_but_up,
            r"gate_proj.weight is NVFP4, layers.0.mlp.up_proj.weight is dense; tensors that",
        ),
    ],
)
def test_a_site_that_cannot_be_fused_is_refused_by_name(tmp_path, quantised, message):
    write_checkpoint(tmp_path, SMALL, Style(naming="modelopt", quantised=quantised))
    tensors = load_tensors(Checkpoint.open(tmp_path), tensor_specs(SMALL))
    with pytest.raises(CheckpointError, match=message):
        build_params(tensors, SMALL, route=LinearRoute(), dtype="float32", loops="layers")
