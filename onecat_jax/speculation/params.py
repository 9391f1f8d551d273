"""Weights of an engine: the target's, and those of a draft model of its own."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax

from onecat_jax.models.qwen3_5 import Params
from onecat_jax.models.qwen3_5.specs import param_specs

if TYPE_CHECKING:
    from onecat_jax.models.dflash.weights import DFlashParams


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EngineParams:
    """What every program of an engine reads."""

    target: Params
    draft: "DFlashParams | None" = None


def engine_specs(params: EngineParams) -> EngineParams:
    """PartitionSpecs in the place of arrays, see `param_specs`."""
    target = param_specs(params.target)
    if params.draft is None:
        return EngineParams(target)
    from onecat_jax.models.dflash.specs import draft_specs

    return EngineParams(target, draft_specs(params.draft))
