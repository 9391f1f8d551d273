"""The model computes what the independent PyTorch implementation computes.

Oracle: transformers' Qwen3_5ForCausalLM, float32, through the files of tests/golden/parity (tests/oracle/make_goldens.py
says how they were made and with which versions). Ten random geometries, every parameter perturbed. The tolerance is a part of
the logit range of the case. Not covered here: weight formats, tensor parallelism, the engine around the model.
"""

import numpy as np
import oracle_weights as ow
import pytest
from model_harness import Harness, build, relative

TOLERANCE = 2e-4
_POISON = 1e4  # what the pages and slots held before


@pytest.fixture(scope="module", params=ow.CASES, ids=lambda case: case.name)
def case(request):
    return request.param


@pytest.fixture(scope="module")
def golden(case):
    return ow.load_golden(case)


@pytest.fixture(scope="module")
def harness(case) -> Harness:
    capacity = case.prompt_length + ow.DECODE_STEPS
    return build(ow.weights(case), case.config, capacity=capacity)


@pytest.fixture(scope="module")
def width(case) -> int:
    """One compiled width for every prefill of a case."""
    return -(-(case.prompt_length + ow.DECODE_STEPS) // 64) * 64


def test_a_full_forward_equals_the_oracle(case, golden, harness, width):
    ids = ow.token_ids(case)
    found, _ = harness.run(harness.new_state(_POISON), ids, 0, width)
    assert relative(found, golden.full, golden.logit_range) <= TOLERANCE


def test_prefill_in_any_three_chunkings_equals_the_oracle(case, golden, harness, width):
    ids = ow.token_ids(case)[: case.prompt_length]
    for chunks, expected in zip(case.chunkings, golden.chunked, strict=True):
        *_, (found, _) = harness.prefill(harness.new_state(_POISON), ids, chunks, width)
        assert relative(found[-1], expected, golden.logit_range) <= TOLERANCE


def test_sixty_four_cached_decode_steps_equal_the_oracle(case, golden, harness, width):
    ids = ow.token_ids(case)
    _, state = harness.run(harness.new_state(_POISON), ids[: case.prompt_length], 0, width)
    found = []
    for position in range(case.prompt_length, len(ids)):
        out, state = harness.run(state, ids[position : position + 1], position, 1)
        found.append(out[0])
    assert relative(np.stack(found), golden.decode, golden.logit_range) <= TOLERANCE
