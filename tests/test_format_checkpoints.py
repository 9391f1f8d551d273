"""The committed checkpoints of the weight formats hold the model that their logits belong to.

Oracle: transformers' Qwen3_5ForCausalLM in float32 on what each format's own package decodes. Here
the matrices are decoded by the tests' numpy and run dense; the engine's loaders are tested on the
same folders elsewhere.
"""

import numpy as np
import oracle_weights as ow
import pytest
from format_checkpoints import CASE, checkpoint_names, decoded_weights, load_checkpoint_golden
from model_harness import Harness, build, relative

TOLERANCE = 2e-4
WIDTH = 128


def test_four_families_are_there():
    names = checkpoint_names()
    assert names == ["awq_g32", "compressed_mixed", "modelopt_mixed", "quark_int4_order_g32"]


@pytest.fixture(scope="module")
def harness() -> Harness:
    """Compiled once: the checkpoints differ in weights alone."""
    return build(ow.weights(CASE), CASE.config, capacity=WIDTH)


@pytest.mark.parametrize("name", checkpoint_names())
def test_the_decoded_folder_gives_the_logits(name: str, harness: Harness):
    golden = load_checkpoint_golden(name)
    weights = decoded_weights(golden.folder)
    assert set(weights) == set(ow.weights(CASE))
    params = build(weights, CASE.config, capacity=WIDTH).params
    batch = harness.batch(golden.ids.tolist(), 0, WIDTH)
    out, _ = harness.step(params, harness.new_state(), batch)
    found, scale = np.asarray(out[0, : golden.ids.size]), float(np.ptp(golden.logits))
    assert relative(found, golden.logits, scale) <= TOLERANCE


@pytest.mark.parametrize("name", checkpoint_names())
def test_the_quantised_model_is_near_the_original(name: str):
    """Roughly: this small model turns 2 % of noise in its weights into 15 % in its logits."""
    decoded, original = decoded_weights(load_checkpoint_golden(name).folder), ow.weights(CASE)
    for module, matrix in original.items():
        distance = np.linalg.norm(decoded[module] - matrix) / np.linalg.norm(matrix)
        assert distance < 0.15, module
