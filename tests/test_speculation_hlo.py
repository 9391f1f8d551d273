"""A launch of rounds is one loop on the device: nothing of a round lies outside of it, the host is met once per launch, and no
cache is copied.

Oracle: the optimised HLO of the engine's own programs, and counted calls.
"""

import re
from dataclasses import replace

import jax
import pytest
from speculating import GREEDY, OFTEN, PROMPTS, engine
from test_hlo import cache_shapes, results

_CALL = re.compile(r'custom_call_target="(onecat_\w+)"')


def computations(hlo: str) -> dict[str, list[str]]:
    """Lines of each computation by its name; that of the program itself is "ENTRY"."""
    found: dict[str, list[str]] = {}
    for line in hlo.splitlines():
        if line.startswith(("%", "ENTRY")):
            name = "ENTRY" if line.startswith("ENTRY") else line.split()[0]
            found[name] = []
        elif found and line.startswith(" "):
            next(reversed(found.values())).append(line)
    return found


@pytest.fixture(scope="module", params=OFTEN)
def drafted(request):
    llm = engine(request.param)
    llm.generate([PROMPTS[0]], replace(GREEDY, logprobs=None))
    keys = [key for key in llm._engine.programs.keys if key[0] == "decode" and key[2] > 1]
    assert keys, "rounds with drafts ran"
    return llm, llm._engine.programs.hlo(keys[0])


def test_draft_verification_and_commit_lie_inside_one_loop(drafted):
    _, hlo = drafted
    parts = computations(hlo)
    assert sum(" while(" in line for line in parts["ENTRY"]) == 1
    calls = {name: _CALL.findall("\n".join(lines)) for name, lines in parts.items()}
    assert not calls["ENTRY"]
    targets = {target for found in calls.values() for target in found}
    assert {"onecat_nvfp4_linear_cpu_v1", "onecat_gdn_commit_rows_cpu_v1"} <= targets


def test_no_cache_is_copied(drafted):
    llm, hlo = drafted
    shapes = cache_shapes(llm) | {
        leaf.shape for leaf in jax.tree.leaves(llm._engine.state.draft) if leaf.size > 10_000
    }
    of_caches = [r for r in results(hlo) if r[1] in shapes]
    assert {shape for _, shape, _ in of_caches} == shapes, "the text is read as it is written"
    assert not [r for r in of_caches if r[2] in ("copy", "copy-start")]


@pytest.mark.parametrize("method", OFTEN)
def test_a_launch_is_one_dispatch_and_one_read(method, monkeypatch):
    llm = engine(method)
    programs, read = llm._engine.programs, jax.device_get
    counts = {"dispatches": 0, "reads": 0}

    def call(key, *arguments):
        counts["dispatches"] += key[0].startswith("decode")
        return type(programs).call(programs, key, *arguments)

    def counted_read(tree):
        counts["reads"] += 1
        return read(tree)

    monkeypatch.setattr(programs, "call", call)
    monkeypatch.setattr(jax, "device_get", counted_read)
    before = llm.stats()["launches"]
    params = replace(GREEDY, max_tokens=120, logprobs=None)
    rounds = llm.generate([PROMPTS[0]], params)[0].metrics.rounds
    launches = llm.stats()["launches"] - before
    assert counts == {"dispatches": launches, "reads": launches}
    assert rounds - 1 >= 4 * (launches - 1), "after the first token at least four rounds per launch"
