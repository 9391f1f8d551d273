"""Checkpoints that the formats' own packages wrote give the logits of the independent implementation.

Oracle: PyTorch in float32 on weights that the packages decoded (tests/golden/formats/checkpoints), over the whole sequence.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from format_checkpoints import CheckpointGolden, checkpoint_names, load_checkpoint_golden
from format_models import load
from model_harness import relative

TOLERANCE = 2e-4


@pytest.fixture(scope="module", params=checkpoint_names())
def golden(request: pytest.FixtureRequest) -> CheckpointGolden:
    return load_checkpoint_golden(request.param)


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize(
    "engine",
    [{}, pytest.param({"backend": "plain"}, marks=pytest.mark.slow)],
    ids=["handlers", "plain"],
)
def test_logits_are_those_of_the_oracle(golden: CheckpointGolden, engine: Mapping[str, Any], ranks):
    harness = load(golden.folder, ranks, **engine)
    found, _ = harness.run(harness.new_state(), golden.ids.tolist(), 0, 128)
    assert relative(found, golden.logits, float(np.ptp(golden.logits))) <= TOLERANCE
