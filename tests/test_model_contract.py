"""What callers of the forward pass may rely on, whatever it computes: purity, no retracing, poison stays out.

Oracle: the model itself under another arrangement. Small random weights, float32, the default route.
"""

import jax
import numpy as np
import oracle_weights as ow
import pytest
from model_harness import build

CASE = ow.CASES_BY_NAME["five_layers_interval4"]
IDS = ow.token_ids(CASE)[:40]


@pytest.fixture(scope="module")
def harness():
    return build(ow.weights(CASE), CASE.config, capacity=128)


def test_a_forward_leaves_the_parameters_untouched(harness):
    before = [np.array(leaf) for leaf in jax.tree.leaves(harness.params)]
    harness.run(harness.new_state(), IDS, 0, 64)
    after = jax.tree.leaves(harness.params)
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_new_values_of_the_same_shapes_trace_nothing_again(harness):
    harness.run(harness.new_state(), IDS, 0, 64)
    traced = harness.step._cache_size()
    harness.run(harness.new_state(), IDS[::-1][:17], 0, 64)
    assert harness.step._cache_size() == traced


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_poison_left_in_pages_and_slots_reaches_no_logit(harness, poison):
    clean, state = harness.run(harness.new_state(), IDS, 0, 64)
    step, _ = harness.run(state, [1], len(IDS), 1)
    found, state = harness.run(harness.new_state(poison), IDS, 0, 64)
    found_step, _ = harness.run(state, [1], len(IDS), 1)
    assert np.array_equal(found, clean)
    assert np.array_equal(found_step, step)


def test_a_sequence_has_the_same_bits_in_any_slot_and_pages(harness):
    first, _ = harness.run(harness.new_state(), IDS, 0, 64, slot=1)
    second, _ = harness.run(harness.new_state(), IDS, 0, 64, slot=2)
    assert np.array_equal(first, second)


@pytest.mark.parametrize("loops", ["none", "superblocks"])
def test_every_kind_of_layer_loop_gives_the_same_numbers(harness, loops):
    expected, _ = harness.run(harness.new_state(), IDS, 0, 64)
    other = build(ow.weights(CASE), CASE.config, capacity=128, loops=loops)
    found, _ = other.run(other.new_state(), IDS, 0, 64)
    assert np.abs(found - expected).max() <= 1e-5 * np.ptp(expected)
