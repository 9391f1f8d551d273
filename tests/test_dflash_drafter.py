"""Rounds of the DFlash drafter against a round in NumPy float64 that walks step by step (dflash_reference.py).

Random words are taken from `sampling.randomness`, which has tests of its own. Covered: both versions, every option that changes
candidates or their scores, ranks, neighbours, rounds of fewer drafts. The target is an embedding and a head.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dflash_cases import (
    BATCH,
    DFLASH1,
    DFLASH2,
    MASK,
    VOCAB,
    WIDTH,
    Target,
    config_json,
    drafter_of,
    random_weights,
    sampling_rows,
    usual_drafter,
)
from dflash_reference import Reference

from onecat_jax.sampling.randomness import STREAM_DRAFT, gumbel, token_words

K = WIDTH - 1


def reference_round(weights, json, target, taps, token, *, temperature=0.0, seed=0, banned=()):
    """Tokens, candidate ids [K, U] and log q [K, U] of one round behind taps [A, S, E]."""
    reference = Reference(weights, json)
    position, config = taps.shape[1], json["dflash_config"]
    x = target.embed[[token] + [MASK] * K].astype(np.float64)
    if "mask_embedding" in weights:
        x[1:] = weights["mask_embedding"]
    x *= json.get("input_embedding_scale", 1.0)
    hidden = reference.blocks(taps, x[None], [position])[0, 1:]
    blocked = np.isin(np.arange(VOCAB), banned) | (np.arange(VOCAB) >= target.vocab_size)
    known = np.arange(VOCAB)
    if "d2t" in weights:
        known = np.arange(len(weights["d2t"])) + weights["d2t"]
    head = np.asarray(weights.get("lm_head.weight", target.head), np.float64)
    count = config.get("selector_top_k", 1)
    columns, values = reference.candidates(hidden @ head.T, blocked[known], count)
    ids = known[columns]
    tokens, log_q, before = [], [], token
    for step in range(K):
        scores = values[step]
        if count > 1:
            scores = reference.scores(step, before, hidden, ids, values)
        if temperature == 0 or count == 1:
            pick = int(np.argmax(scores))
            log_q.append(np.where(np.arange(count) == pick, 0.0, -np.inf))
        else:
            words = token_words(
                jnp.asarray([[seed, 0]], jnp.uint32),
                jnp.asarray([position + 1 + step]),
                jnp.asarray(ids[step][None]),
                STREAM_DRAFT,
            )
            pick = int(np.argmax(scores / temperature + np.asarray(gumbel(words))[0]))
            q = np.exp((scores - scores.max()) / temperature)
            log_q.append(np.log(q / q.sum()))
        before = int(ids[step][pick])
        tokens.append(before)
    return np.asarray(tokens), ids, np.asarray(log_q)


def taps_of(length, count=3, seed=5):
    return np.random.default_rng(seed).normal(0, 1, (count, length, 64)).astype(np.float32)


def with_own_ids(weights, json):
    """A draft of 96 ids of its own."""
    rng = np.random.default_rng(3)
    ids = np.sort(rng.choice(VOCAB, 96, replace=False))
    json = json | {"draft_vocab_size": 96}
    head = rng.normal(0, 0.3, (96, 64)).astype(np.float32)
    return weights | {"lm_head.weight": head, "d2t": (ids - np.arange(96)).astype(np.int64)}, json


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    ("dflash", "changes"),
    [
        (DFLASH2, {}),
        (DFLASH1, {}),
        (DFLASH2, {"output_multiplier": 1.7, "final_logit_softcapping": 3.0}),
        (DFLASH2, {"input_embedding_scale": 2.5}),
        (DFLASH2 | {"selector_top_k": 4}, {"mask": True}),
        (DFLASH2, {"own": True}),
        (DFLASH1, {"own": True}),
    ],
)
def test_a_round_equals_the_reference(dflash, changes, temperature):
    changes = dict(changes)
    own, mask = changes.pop("own", False), changes.pop("mask", False)
    json = config_json(dflash, **changes)
    weights, target = random_weights(json), Target.random()
    if own:
        weights, json = with_own_ids(weights, json)
    if mask:
        weights["mask_embedding"] = np.full(64, 0.5, np.float32)
    harness = drafter_of(weights, json, target)
    lengths, tokens = [0, 20, 75], [3, 200, 91]
    taps = [taps_of(length, seed=length) for length in lengths]
    drafts = harness.round(taps, tokens, sampling_rows(temperature))
    for row in range(3):
        found, ids, log_q = reference_round(
            weights, json, target, taps[row], tokens[row], temperature=temperature, seed=row
        )
        assert np.array_equal(drafts.ids[row], ids)
        assert np.array_equal(drafts.tokens[row], found)
        assert np.allclose(np.exp(drafts.log_q[row]), np.exp(log_q), atol=1e-4)
        assert drafts.count[row] == K


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("own", [False, True])
def test_ranks_draft_what_one_drafts(ranks, own):
    json, target = config_json(), Target.random()
    weights = random_weights(json)
    if own:
        weights, json = with_own_ids(weights, json)
    taps, settings = [taps_of(20), taps_of(7)], sampling_rows(0.9)
    found = [
        drafter_of(weights, json, target, ranks=count).round(
            taps, [7, 8], settings, banned=(11, 12)
        )
        for count in (1, ranks)
    ]
    assert np.array_equal(found[0].tokens, found[1].tokens)
    assert np.array_equal(found[0].ids, found[1].ids)
    assert np.allclose(found[0].log_q, found[1].log_q, atol=1e-4)


def test_every_draft_is_one_of_its_candidates_and_q_sums_to_one():
    harness = usual_drafter()
    drafts = harness.round([taps_of(9)] * BATCH, [7] * BATCH, sampling_rows(0.7))
    assert np.allclose(np.exp(drafts.log_q).sum(-1), 1, atol=1e-6)
    chosen = drafts.ids == drafts.tokens[..., None]
    assert (chosen.sum(-1) == 1).all()
    assert np.isfinite(drafts.log_q[chosen]).all()
    assert len({tuple(row) for row in drafts.tokens.tolist()}) > 1, "seeds must matter"


def test_without_successors_the_walk_takes_the_likeliest_of_each_row():
    json = config_json()
    weights = random_weights(json)
    weights["candidate_selector.successor_codebook"][:] = 0
    drafts = drafter_of(weights, json, Target.random()).round(
        [taps_of(30)] * 2, [5, 6], sampling_rows(0.0)
    )
    assert np.array_equal(drafts.tokens, drafts.ids[..., 0])


def test_fewer_drafts_are_the_first_ones():
    """The block stays as wide as the checkpoint's."""
    json, target = config_json(), Target.random()
    weights, settings = random_weights(json), sampling_rows(0.6)
    taps = [taps_of(30), taps_of(44)]
    whole = usual_drafter().round(taps, [5, 6], settings)
    some = drafter_of(weights, json, target, drafts=3).round(taps, [5, 6], settings)
    assert some.tokens.shape == (BATCH, 3)
    assert np.array_equal(some.tokens, whole.tokens[:, :3])
    assert np.array_equal(some.log_q, whole.log_q[:, :3])


def test_drafts_don_t_depend_on_neighbours():
    harness = usual_drafter()
    settings = sampling_rows(0.8)
    taps, tokens = [taps_of(n, seed=n) for n in (12, 3, 55, 30)], [1, 2, 3, 4]
    together = harness.round(taps, tokens, settings)
    for row in range(4):
        only = [tap if at == row else None for at, tap in enumerate(taps)]
        alone = harness.round(only, tokens, settings)
        assert np.array_equal(alone.tokens[row], together.tokens[row])
        assert np.array_equal(alone.log_q[row], together.log_q[row])
        assert alone.count.tolist() == [K if at == row else 0 for at in range(4)]


def test_a_greedy_drafter_ignores_temperatures():
    json, target = config_json(), Target.random()
    weights, taps = random_weights(json), [taps_of(30), taps_of(8)]
    hot = drafter_of(weights, json, target, greedy=True).round(taps, [5, 6], sampling_rows(0.9))
    cold = usual_drafter().round(taps, [5, 6], sampling_rows(0.0))
    assert np.array_equal(hot.tokens, cold.tokens)
    assert np.array_equal(np.exp(hot.log_q).max(-1), np.ones((BATCH, K)))


def test_ids_that_may_not_be_picked_are_not_proposed():
    json, target = config_json(), replace(Target.random(), vocab_size=240)
    weights, taps = random_weights(json), taps_of(30)
    banned = tuple(range(12, 240))
    drafts = drafter_of(weights, json, target).round(
        [taps] * 2, [5, 6], sampling_rows(0.8), banned=banned
    )
    assert drafts.tokens.max() < 12
    assert np.allclose(np.exp(drafts.log_q).sum(-1), 1, atol=1e-6)
    usable = np.exp(drafts.log_q) > 0
    assert (drafts.ids[usable] < 12).all()
    assert (usable.sum(-1) <= 12).all()


def test_no_more_drafts_count_than_are_wanted():
    harness = usual_drafter()
    taps = [taps_of(9)] * 4
    drafts = harness.round(taps, [1] * 4, sampling_rows(0.0), wanted=[0, 2, 7, 9])
    assert drafts.count.tolist() == [0, 2, 7, 7]


def test_taps_that_are_no_numbers_end_in_no_drafts_for_their_row_alone():
    harness = usual_drafter()
    bad = taps_of(9)
    bad[0, 4, 3] = np.nan
    drafts = harness.round([taps_of(9), bad], [1, 1], sampling_rows(0.8))
    good = harness.round([taps_of(9), None], [1, 1], sampling_rows(0.8))
    assert drafts.count.tolist() == [K, 0, 0, 0]
    assert np.array_equal(drafts.tokens[0], good.tokens[0])


def test_the_drafter_is_static():
    json = config_json()
    one, other = (drafter_of(random_weights(json), json, Target.random()).drafter for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    with pytest.raises(ValueError, match="1 to 7 drafts, asked for 8"):
        replace(one, drafts=8)
    assert one.taps == (0, 2, 3)
    assert jax.tree.leaves(one) == [one], "no arrays in it"
