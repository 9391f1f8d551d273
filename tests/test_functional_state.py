"""A state continues where it stands: prefill, decode and repeat in any order give what one call gives.

Oracle: `generate` and `logprobs` on the whole sequences. Embedded model, float32, CPU handlers. Bitwise, except that generated
tokens go into the state one by one and a prompt's in chunks of 64, which round differently: there tokens are equal unless the
two candidates lie within 1e-4 nats (the gap rule; exceptions are printed).
"""

from dataclasses import replace

import jax
import numpy as np
import pytest
from functional_cases import (
    GREEDY,
    NEW,
    PROMPT_LENGTHS,
    ROWS,
    WIDTH,
    padded,
    random_prompts,
    rollout,
    tiny,
)
from functional_gap import rows_that_differ

from onecat_jax import SamplingParams, functional
from onecat_jax.functional import LENGTH, OVERFLOW, STOPPED

CAPACITY = 256
_PENALISED = replace(GREEDY, repetition_penalty=1.2, presence_penalty=0.5)
_EVERYTHING = SamplingParams(
    temperature=0.9,
    top_k=40,
    seed=4,
    min_tokens=12,
    ignore_eos=True,
    repetition_penalty=1.2,
    frequency_penalty=0.1,
)


@pytest.fixture(scope="module")
def prompts():
    return random_prompts()


def settings(params=GREEDY, rows=ROWS, **arrays):
    model, _ = tiny()
    return functional.sampling(model, rows, params, **arrays)


def empty(rows=ROWS, capacity=CAPACITY):
    model, _ = tiny()
    return functional.new_state(model, rows, capacity)


def extended(state, prompts, sampling):
    return functional.prefill(*tiny(), state, *padded(prompts), sampling)


def continued(state, sampling, **arguments):
    arguments = {"max_new_tokens": NEW} | arguments
    return functional.decode(*tiny(), state, sampling, **arguments)


def assert_equal(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_prefill_and_decode_are_generate(prompts):
    sampling = settings(_EVERYTHING)
    state, out = continued(extended(empty(), prompts, sampling), sampling)
    expected = rollout(prompts, sampling)
    assert_equal(out, expected)
    np.testing.assert_array_equal(state.length, np.array(PROMPT_LENGTHS) + expected.lengths)
    np.testing.assert_array_equal(
        state.last, [row[n - 1] for row, n in zip(expected.tokens, expected.lengths, strict=True)]
    )


def test_decode_in_parts_is_decode_in_one(prompts):
    sampling = settings(_EVERYTHING)
    state = extended(empty(), prompts, sampling)
    whole_state, whole = continued(state, sampling)
    limits = np.array([5, 1, NEW, 0])
    middle, first = continued(state, sampling, limits=limits)
    end, second = continued(middle, sampling, limits=NEW - limits)
    for row, cut in enumerate(limits):
        joined = np.concatenate([first.tokens[row, :cut], second.tokens[row, : NEW - cut]])
        np.testing.assert_array_equal(joined, whole.tokens[row])
    assert_equal(end, whole_state)


def test_a_prompt_given_in_parts_cut_at_multiples_of_64_is_the_prompt(prompts):
    # The last token of a part waits for the next part, so the first part has one more.
    sampling = settings(_EVERYTHING)
    long = [p + q for p, q in zip(random_prompts([65] * ROWS, seed=3), prompts, strict=True)]
    first = extended(empty(), [p[:65] for p in long], sampling)
    second = extended(first, [p[65:] for p in long], sampling)
    tokens, lengths = padded(long, 224)
    expected = functional.prefill(*tiny(), empty(), tokens, lengths, sampling)
    assert_equal(second, expected)


def test_a_row_that_gets_no_tokens_stays_as_it_is(prompts):
    sampling = settings()
    state = extended(empty(), prompts, sampling)
    same = extended(state, [[]] * ROWS, sampling)
    assert_equal(same, state)
    part = extended(state, [[], prompts[1], [], []], sampling)
    _, found = continued(part, sampling)
    _, before = continued(state, sampling)
    for row in (0, 2, 3):
        np.testing.assert_array_equal(found.tokens[row], before.tokens[row])


def test_a_second_turn_continues_the_conversation_by_the_gap_rule(prompts):
    # Penalties too: what the first turn has generated is part of the second one's prompt.
    sampling = settings([GREEDY, GREEDY, _PENALISED, _PENALISED])
    state, first = continued(extended(empty(), prompts, sampling), sampling)
    turns = random_prompts((20, 64, 90, 1), seed=5)
    _, second = continued(extended(state, turns, sampling), sampling)
    so_far = [
        p + new.tolist() + turn
        for p, new, turn in zip(prompts, np.asarray(first.tokens), turns, strict=True)
    ]
    tokens, lengths = padded(so_far, 192)
    expected = functional.generate(*tiny(), tokens, lengths, sampling, max_new_tokens=NEW)
    differ = rows_that_differ(second, expected, so_far)
    print(f"{len(differ)} of {ROWS} rows differ within the gap")


def test_repeated_rows_of_a_state_are_rows_of_the_same_prompt(prompts):
    model, _ = tiny()
    seeds = [3, 4, 5, 6]
    sampling = settings(SamplingParams(temperature=1.0, repetition_penalty=1.1), seed=seeds)
    two = settings(SamplingParams(temperature=1.0, seed=0, repetition_penalty=1.1), rows=2)
    state = extended(empty(2), prompts[:2], two)
    _, out = continued(functional.repeat(model, state, 2), sampling)
    expected = rollout([prompts[0], prompts[0], prompts[1], prompts[1]], sampling)
    assert_equal(out, expected)


def test_a_row_without_room_takes_no_tokens_and_says_so(prompts):
    sampling = settings()
    state = extended(empty(capacity=170), prompts, sampling)
    assert state.capacity == 176
    again = extended(state, prompts, sampling)
    assert again.overflow.tolist() == [True, False, False, False]
    assert again.length.tolist() == [150, 18, 2, 66]
    _, out = continued(again, sampling)
    assert (int(out.lengths[0]), int(out.status[0])) == (0, OVERFLOW)
    _, alone = continued(extended(empty(), [[], *[p + p for p in prompts[1:]]], sampling), sampling)
    np.testing.assert_array_equal(out.tokens[1:], alone.tokens[1:])


def test_a_row_ends_where_its_room_ends(prompts):
    sampling = settings()
    full = [random_prompts([WIDTH], seed=2)[0], *prompts[1:]]
    first, begun = continued(
        extended(empty(capacity=170), full, sampling), sampling, limits=[10] * ROWS
    )
    second, out = continued(first, sampling)
    assert out.lengths.tolist() == [6, NEW, NEW, NEW]
    assert out.status.tolist() == [LENGTH] * ROWS
    together = np.concatenate([begun.tokens[:, :10], out.tokens[:, :6]], axis=1)
    np.testing.assert_array_equal(together, rollout(full, sampling).tokens)
    _, nothing = continued(second, sampling, limits=[1] * ROWS)
    assert nothing.lengths.tolist() == [0, 1, 1, 1]
    assert nothing.status.tolist() == [LENGTH] * ROWS


def test_a_stopped_row_can_be_continued(prompts):
    sampling = settings()
    state = extended(empty(), prompts, sampling)
    _, free = continued(state, sampling)
    stop = int(free.tokens[0, 4])
    stopping = settings(SamplingParams(temperature=0.0, ignore_eos=True, stop_token_ids=(stop,)))
    middle, first = continued(state, stopping)
    assert int(first.status[0]) == STOPPED
    cut = int(first.lengths[0])
    _, second = continued(middle, sampling)
    joined = np.concatenate([first.tokens[0, :cut], second.tokens[0]])[:NEW]
    np.testing.assert_array_equal(joined, free.tokens[0])
