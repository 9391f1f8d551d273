"""No program copies a cache, and no small-row program on the handler route makes a weight-sized buffer.

Oracle: the optimised HLO of the engine's own compiled programs. A cache that is copied once per step is invisible in results
and dominates the time of large models.
"""

import re

import pytest
from tiny_engine import PROMPTS, tiny

from onecat_jax import LLM, SamplingParams

_RESULT = re.compile(r"^\s+(?:ROOT )?%\S+ = (\w+)\[([\d,]*)\]\S* ([\w-]+)\(")
_FREE = {"parameter", "get-tuple-element", "tuple", "while", "bitcast", "custom-call", "constant"}
_IN_PLACE = {"dynamic-update-slice", "fusion"}  # only roots that update a cache have its shape
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "f16": 2, "bf16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8}


def results(hlo: str):
    """(dtype, shape, operation) of every instruction outside fused computations."""
    inside = False
    for line in hlo.splitlines():
        if line and not line.startswith(" "):
            inside = line.startswith(("%fused", "%wrapped"))
        match = _RESULT.match(line)
        if match and not inside:
            dtype, dims, operation = match.groups()
            yield dtype, tuple(int(d) for d in dims.split(",") if d), operation


def cache_shapes(llm: LLM) -> set[tuple[int, ...]]:
    state = llm._engine.state
    gdn, counts = state.gdn, state.history.counts
    return {state.kv.k.shape, gdn.state.shape, gdn.window.shape, counts.shape}


@pytest.fixture(scope="module", params=["auto", "plain"])
def llm(request):
    engine = (
        tiny()
        if request.param == "auto"
        else LLM(
            "tiny", backend="plain", max_model_len=512, max_num_seqs=4, max_num_batched_tokens=128
        )
    )
    engine.generate(["x = 1\n" * 30, *PROMPTS[:1]], SamplingParams(max_tokens=2))
    engine.generate(PROMPTS[1], SamplingParams(max_tokens=2, n=2))
    assert {key[0] for key in engine._engine.programs.keys} >= {"prefill", "fork", "decode"}
    return engine


def test_no_program_copies_a_cache(llm):
    caches = cache_shapes(llm)
    programs = llm._engine.programs
    assert programs.keys
    for key in programs.keys:
        of_caches = [r for r in results(programs.hlo(key)) if r[1] in caches]
        assert {shape for _, shape, _ in of_caches} == caches, "the text is read as it is written"
        copies = [r for r in of_caches if r[2] in ("copy", "copy-start")]
        assert not copies, (key, copies)


def test_decode_on_the_handler_route_makes_no_weight_sized_buffer():
    llm = tiny()
    llm.generate(PROMPTS[0], SamplingParams(max_tokens=2))
    smallest = 384 * 1024 * 4  # the smallest linear of the embedded model, expanded to float32
    caches = cache_shapes(llm)
    for key in llm._engine.programs.keys:
        if key[0] != "decode":
            continue
        for dtype, shape, operation in results(llm._engine.programs.hlo(key)):
            size = _BYTES.get(dtype, 4)
            for dim in shape:
                size *= dim
            if operation in _FREE or (operation in _IN_PLACE and shape in caches):
                continue
            assert size < smallest, (key, dtype, shape, operation)
