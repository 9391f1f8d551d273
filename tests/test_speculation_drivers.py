"""The device loop, the host that steps through rounds, and rounds run as plain Python give the same tokens.

Oracle: the device loop. Masks are tested for what they forbid, not for what is picked among the rest.
"""

from functools import partial

import jax
import numpy as np
import pytest
from speculating import PROMPTS, engine

from onecat_jax import SamplingParams
from onecat_jax.request import Request
from onecat_jax.sampling import request_row, stack_rows
from onecat_jax.speculation.launch import launch
from onecat_jax.speculation.stepped import plainly, stepped

ROUNDS = 5
SETTINGS = {
    "greedy": SamplingParams(temperature=0.0, ignore_eos=True),
    "sampled": SamplingParams(temperature=0.8, top_p=0.9, ignore_eos=True),
}


def started(method, settings):
    """An engine's parts with two requests prefilled: everything that a driver takes."""
    llm = engine(method)
    core = llm._engine
    for seed, prompt in enumerate(PROMPTS[:2]):
        ids = tuple(llm.tokenizer.encode(prompt))
        row = request_row(settings, (), seed=seed, prompt_length=len(ids))
        request = Request(str(seed), ids, settings, row, len(ids) + 200, pace=core.pace(None))
        core.scheduler.add(request)
    core._start(core.scheduler.admit())
    running = list(core.scheduler.running)
    operands = (
        core.operands.round_rows(running, 2),
        stack_rows([r.sampling for r in running], 2),
        core.banned,
    )
    return core, operands


def finished(core):
    for request in list(core.scheduler.running):
        core.scheduler.finish(request)


def copied(core):
    return jax.tree.map(lambda a: a.copy(), core.state)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("method", ["dflash", "mtp"])
def test_the_host_stepping_through_rounds_gets_the_loops_tokens(method, settings):
    core, operands = started(method, SETTINGS[settings])
    width, step = core.options.widths[-1], partial(launch, k=None, options=core.options)
    _, looped = core.programs.call(
        ("decode", 2, width),
        partial(step, width=width),
        (core.params, copied(core), *operands, np.int32(ROUNDS)),
    )
    _, by_host = stepped(
        core.programs.call, core.params, copied(core), *operands, ROUNDS, core.options,
        width=width, k=None,
    )  # fmt: skip
    finished(core)
    expected = jax.tree.map(lambda a: np.asarray(a)[:ROUNDS], looped.rounds)
    jax.tree.map(np.testing.assert_array_equal, expected, by_host.rounds)
    jax.tree.map(np.testing.assert_array_equal, looped.rows, by_host.rows)


def test_a_round_as_plain_python_is_the_compiled_round():
    core, operands = started("dflash", SETTINGS["greedy"])
    run = partial(stepped, width=core.options.widths[-1], k=None)
    args = (*operands, 1, core.options)
    _, compiled = run(core.programs.call, core.params, copied(core), *args)
    with jax.disable_jit():
        _, plain = run(plainly, core.params, copied(core), *args)
    finished(core)
    np.testing.assert_array_equal(compiled.rounds.tokens, plain.rounds.tokens)


def test_masks_keep_every_row_of_a_round_to_what_they_allow():
    core, operands = started("dflash", SETTINGS["greedy"])
    vocab = core.options.forward.config.vocab_size
    seen = []

    def masks(rows, drafts):
        seen.append(np.asarray(drafts.tokens))
        allowed = np.zeros((2, drafts.tokens.shape[1] + 1, vocab), bool)
        allowed[..., ::2] = True  # even ids
        return allowed

    _, result = stepped(
        core.programs.call, core.params, copied(core), *operands, ROUNDS, core.options,
        width=core.options.widths[-1], k=None, masks=masks,
    )  # fmt: skip
    finished(core)
    tokens = np.asarray(result.rounds.tokens)
    assert len(seen) == ROUNDS
    assert any((drafts % 2).any() for drafts in seen)
    assert (tokens[tokens >= 0] % 2 == 0).all()
