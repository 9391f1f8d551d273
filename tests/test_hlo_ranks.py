"""What crosses between ranks: two all-reduces a layer, one for the embedding, small gathers for sampling, nothing else.

Oracle: the optimised HLO on four fake CPU devices, of a forward pass with every layer spelled out and of the engine's own
programs. A weight that is gathered, or a custom call whose operands are, is invisible in results.
"""

import math
import re
from types import MappingProxyType

import oracle_weights as ow
import pytest
from model_harness import build
from test_hlo import results

from onecat_jax import LLM, SamplingParams
from onecat_jax.sharding import TP

RANKS = 4
CASE = next(case for case in ow.CASES if case.name == "four_ranks_gqa4")
_SAME_NUMBERS = ("bitcast", "copy", "reshape", "transpose", "convert", "get-tuple-element")
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


@pytest.fixture(scope="module")
def programs():
    """Optimised HLO by program of an engine on four ranks, and what is the state's there."""
    llm = LLM(
        "tiny",
        tensor_parallel_size=RANKS,
        max_model_len=128,
        max_num_seqs=2,
        max_num_batched_tokens=64,
    )
    for logprobs in (None, 2):
        llm.generate("x = 1\n" * 9, SamplingParams(max_tokens=2, n=2, seed=1, logprobs=logprobs))
    engine = llm._engine
    return MappingProxyType({key: engine.programs.hlo(key) for key in engine.programs.keys}), engine


def test_ranks_exchange_activations_and_candidates_but_never_weights(programs):
    hlo, engine = dict(programs[0]), programs[1]
    config = engine.options.forward.config
    assert {key[0] for key in hlo} >= {"prefill", "decode", "fork"}
    assert not collectives(hlo.pop(("fork",))), "each rank copies its own pieces"
    for key, text in hlo.items():
        rows = key[1]  # tokens of a prefill, rows of a decode
        found = collectives(text)
        sums = [size for operation, size in found if operation == "all-reduce"]
        # The embedding, and the bodies of the loops over GDN layers and over attention layers, two each.
        assert sums == [rows * config.hidden_size] * 5, key
        rest = [size for operation, size in found if operation != "all-reduce"]
        assert {operation for operation, _ in found} <= {"all-reduce", "all-gather"}
        assert max(rest, default=0) <= rows * config.vocab_size, key
        assert sum(size > RANKS * rows * 64 * 2 for size in rest) <= 1, (key, rest)


def test_no_custom_call_reads_a_gathered_operand(programs):
    for key, text in programs[0].items():
        made = {name: (operation, operands) for name, operation, operands in instructions(text)}
        calls = [operands for operation, operands in made.values() if operation == "custom-call"]
        assert calls, key
        sources = {source_of(name, made) for operands in calls for name in operands}
        assert not [name for name in sources if "all-gather" in made.get(name, ("",))[0]], key


def instructions(hlo: str):
    """(name, operation, names of operands) of every instruction."""
    for line in hlo.splitlines():
        if match := re.match(r"^\s+(?:ROOT )?%(\S+) = .*? ([a-z][\w-]*)\(([^)]*)\)", line):
            name, operation, operands = match.groups()
            yield name, operation, re.findall(r"%([\w.\-]+)", operands)


def source_of(name: str, made: dict[str, tuple[str, list[str]]]) -> str:
    """What an operand is, behind operations that only show it in another form."""
    while name in made and made[name][0] in _SAME_NUMBERS:
        name = made[name][1][0]
    return name


def test_no_program_on_several_ranks_copies_a_cache(programs):
    hlo, engine = programs
    local = {
        (*shape[:axis], shape[axis] // RANKS, *shape[axis + 1 :])
        for shape, axis in split_shapes(engine.state)
    }
    for key, text in hlo.items():
        of_caches = [r for r in results(text) if r[1] in local]
        assert {shape for _, shape, _ in of_caches} >= local, key
        assert not [r for r in of_caches if r[2] in ("copy", "copy-start")], key


def split_shapes(state):
    """(global shape, split axis) of every cache."""
    for array in (state.kv.k, state.gdn.state, state.gdn.window, state.history.counts):
        yield array.shape, array.sharding.spec.index(TP)
