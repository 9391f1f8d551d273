"""The memory plan of a draft. Oracle: bytes of the arrays that are really placed.

Not covered: quantised drafts, whose sizes the target's plan shares and tests.
"""

import jax
import pytest

from onecat_jax.config import EngineConfig
from onecat_jax.loading import Checkpoint
from onecat_jax.loading.hub import EMBEDDED, locate
from onecat_jax.models import registry
from onecat_jax.sharding import Placement
from onecat_jax.speculation.setup import load_draft, open_draft, plan_draft


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("backend", ["auto", "plain"])
def test_planned_bytes_of_a_draft_are_the_bytes_of_its_arrays(dtype: str, backend: str):
    checkpoint = Checkpoint.open(locate(EMBEDDED))
    target = registry.resolve(checkpoint.config).read_config(checkpoint.config)
    engine = EngineConfig(dtype=dtype, backend=backend, speculative_config={"method": "dflash"})
    draft = open_draft(engine.speculation, EMBEDDED, target)
    assert draft is not None
    planned = plan_draft(engine.speculation, draft, target, engine, "cpu")
    params = load_draft(draft, engine, Placement.of(1), lambda done, total: None)
    assert planned.weights == sum(leaf.nbytes for leaf in jax.tree.leaves(params))
