"""What crosses between ranks: two all-reduces a layer, one for the embedding, small gathers for sampling, nothing else.

Oracle: the optimised HLO on four fake CPU devices, of a forward pass with every layer spelled out and of the engine's own
programs. A weight that is gathered, or a custom call whose operands are, is invisible in results.
"""

import math
import re

import oracle_weights as ow
import pytest
from model_harness import build

RANKS = 4
CASE = next(case for case in ow.CASES if case.name == "four_ranks_gqa4")
_COLLECTIVE = re.compile(
    r"^\s+(?:ROOT )?%\S+ = (\w+)\[([\d,]*)\]\S* "
    r"(all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter|collective-broadcast)"
)


def collectives(hlo: str) -> list[tuple[str, int]]:
    """(operation, elements of its result) of every collective of a module."""
    found = []
    for line in hlo.splitlines():
        if match := _COLLECTIVE.match(line):
            _, dims, operation = match.groups()
            found.append((operation, math.prod(int(d) for d in dims.split(",") if d)))
    return found


@pytest.mark.parametrize("width", [1, 64])
def test_a_forward_pass_sums_twice_a_layer_and_once_for_the_embedding(width):
    harness = build(ow.weights(CASE), CASE.config, capacity=128, loops="none", ranks=RANKS)
    batch = harness.batch([1] * width, 0, width)
    state = harness.new_state()
    hlo = harness.step.lower(harness.params, state, batch).compile().as_text()
    found = collectives(hlo)
    layers = len(ow.layer_types(CASE.config))
    assert [operation for operation, _ in found] == ["all-reduce"] * (2 * layers + 1)
    assert {size for _, size in found} == {2 * width * CASE.config["hidden_size"]}
