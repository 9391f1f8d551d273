"""The model computes what the independent PyTorch implementation computes on every tensor-parallel degree too.

Oracle: the goldens of test_parity, on 2 and 4 fake CPU devices, every geometry that divides. Key/value heads are repeated over
ranks in three of them. Covered: one prefill, a chunked prefill, cached decode steps; loops and routes as on one device.
"""

import numpy as np
import oracle_weights as ow
import pytest
from model_harness import Harness, build, relative
from test_parity import _POISON, TOLERANCE

from onecat_jax.errors import EngineError
from onecat_jax.models.qwen3_5 import ModelConfig

STEPS = 12


def divides(case: ow.Case, ranks: int) -> bool:
    try:
        ModelConfig.from_hf(case.config).local(ranks)
    except EngineError:
        return False
    return True


SPLIT_CASES = [(case, ranks) for ranks in (2, 4) for case in ow.CASES if divides(case, ranks)]


@pytest.fixture(scope="module", params=SPLIT_CASES, ids=lambda p: f"{p[0].name}-{p[1]}")
def split(request):
    return request.param


@pytest.fixture(scope="module")
def harness(split) -> Harness:
    case, ranks = split
    capacity = case.prompt_length + ow.DECODE_STEPS
    return build(ow.weights(case), case.config, capacity=capacity, ranks=ranks)


def test_enough_geometries_are_split_both_ways():
    assert [sum(ranks == r for _, ranks in SPLIT_CASES) for r in (2, 4)] == [9, 4]


def test_prefill_and_cached_decode_on_several_ranks_equal_the_oracle(split, harness):
    case, _ = split
    golden, ids = ow.load_golden(case), ow.token_ids(case)
    width = -(-case.prompt_length // 64) * 64
    prompt = ids[: case.prompt_length]
    *_, (chunked, _) = harness.prefill(harness.new_state(_POISON), prompt, case.chunkings[0], width)
    assert relative(chunked[-1], golden.chunked[0], golden.logit_range) <= TOLERANCE
    full, state = harness.run(harness.new_state(_POISON), prompt, 0, width)
    assert relative(full, golden.full[: len(prompt)], golden.logit_range) <= TOLERANCE
    found = []
    for position in range(case.prompt_length, case.prompt_length + STEPS):
        out, state = harness.run(state, ids[position : position + 1], position, 1)
        found.append(out[0])
    assert relative(np.stack(found), golden.decode[:STEPS], golden.logit_range) <= TOLERANCE
