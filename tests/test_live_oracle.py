"""The model computes what PyTorch computes, on weights that no golden file was made from.

Oracle: transformers' Qwen3_5ForCausalLM in float32, run here. Only where torch and transformers are
installed; the golden files (tests/test_parity.py) stand in for them elsewhere. Two geometries of
the goldens with new seeds and lengths. Not covered: weight formats, the engine around the model.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import oracle_weights as ow
import pytest

pytest.importorskip("torch", reason="the live oracle needs torch")
pytest.importorskip("transformers", reason="the live oracle needs transformers")
sys.path.insert(0, str(Path(__file__).parent / "oracle"))

import make_goldens
from model_harness import build, relative

TOLERANCE = 2e-4
CASES = (
    replace(ow.CASES_BY_NAME["gqa6_irregular"], seed=9001, prompt_length=67, chunkings=((64, 3),)),
    replace(
        ow.CASES_BY_NAME["five_layers_interval4"],
        seed=9002,
        prompt_length=140,
        chunkings=((64, 64, 12),),
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_fresh_weights_give_the_logits_of_the_live_oracle(case):
    chunks = case.chunkings[0]
    make_goldens.torch.set_num_threads(1)
    golden = make_goldens.run(case)
    ids, capacity = ow.token_ids(case), 256
    harness = build(ow.weights(case), case.config, capacity=capacity)
    full, _ = harness.run(harness.new_state(), ids, 0, capacity)
    assert relative(full, golden.full, golden.logit_range) <= TOLERANCE
    prompt, rest = ids[: case.prompt_length], ids[case.prompt_length :]
    *_, (out, state) = harness.prefill(harness.new_state(), prompt, chunks, capacity)
    assert relative(out[-1], golden.chunked[0], golden.logit_range) <= TOLERANCE
    steps = []
    for offset, token in enumerate(rest):
        out, state = harness.run(state, [token], len(prompt) + offset, 1)
        steps.append(out[0])
    assert relative(np.stack(steps), golden.decode, golden.logit_range) <= TOLERANCE
