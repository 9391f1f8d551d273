"""A draft's block behind its windows, against the packed form that trainers use (dflash_reference.py, NumPy float64).

Covered: both versions, windows and full layers, causal and not, both rotary layouts, value scales, biases; contexts longer than
the ring, in one piece and in pieces longer than the ring; FP16 taps beyond its range; ranks; neighbours. Not covered: formats
other than dense, GPUs.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from dflash_cases import (
    DFLASH1,
    DFLASH2,
    LAYERS,
    PAGE,
    WIDTH,
    WINDOW,
    build,
    config_json,
    random_weights,
)
from dflash_reference import Reference

_FULL = "full_attention"
_MIXED = ["sliding_attention", _FULL]


def sequence(json, length, seed=1, blocks=1, scale=1.0):
    """Taps [A, S, E] of a sequence and embedded rows [N, Q, E] of blocks."""
    rng = np.random.default_rng(seed)
    taps = rng.normal(0, scale, (len(json["dflash_config"]["target_layer_ids"]), length, 64))
    return taps.astype(np.float32), rng.normal(0, 1, (blocks, WIDTH, 64)).astype(np.float32)


def worst(found, expected):
    return np.abs(found - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize(
    ("dflash", "changes"),
    [
        (DFLASH2, {}),
        (DFLASH1, {}),
        (DFLASH2, {"is_causal": True}),
        (DFLASH2, {"layer_types": _MIXED}),
        (DFLASH1, {"layer_types": [_FULL] * LAYERS}),
        (DFLASH2, {"is_neox_style": False}),
        (DFLASH1, {"attention_bias": True, "attention_value_scale": 0.7}),
        (DFLASH2 | {"conv_kernel_size": 3, "conv_group_size": 8}, {}),
    ],
)
def test_blocks_equal_the_packed_form_of_training(dflash, changes):
    json = config_json(dflash, **changes)
    weights = random_weights(json)
    anchors = [0, 3, 17, 39, 100]
    taps, embedded = sequence(json, 110, blocks=len(anchors))
    expected = Reference(weights, json).blocks(taps, embedded, anchors)
    harness = build(weights, json)
    for at, x, rows in zip(anchors, embedded, expected, strict=True):
        window = harness.new_state(poison=np.nan).window
        window = harness.feed(window, taps[:, :at], [at] if at else [], 112)
        assert worst(harness.run(window, x, at), rows) < 1e-5


def test_a_chain_of_rounds_equals_the_packed_form():
    """Blocks leave their keys and values behind the context; accepted rows replace them, the others don't matter."""
    json = config_json()
    weights = random_weights(json)
    steps = [1, 8, 3, 1, 1, 5, 8, 8, 2, 6] * 3  # tokens per round
    anchors = np.cumsum([20, *steps])
    taps, embedded = sequence(json, int(anchors[-1]), blocks=len(anchors))
    expected = Reference(weights, json).blocks(taps, embedded, anchors)
    harness = build(weights, json)
    window = harness.feed(harness.new_state(poison=np.nan).window, taps[:, :20], [20], 64)
    for at, x, rows, step in zip(anchors, embedded, expected, [*steps, 0], strict=True):
        one = (jnp.asarray([at, 0]), jnp.asarray([True, False]), jnp.asarray([1, 0]))
        both = jnp.asarray(np.stack([x, np.zeros_like(x)]))
        hidden, window = harness.block(harness.params, window, both, *one)
        assert worst(np.asarray(hidden[0]), rows) < 1e-5
        fresh = np.full((taps.shape[0], 2, WIDTH, 64), np.nan, np.float32)
        fresh[:, 0, :step] = taps[:, at : at + step]
        where = (one[0], jnp.asarray([step, 0]), one[2])
        window = harness.context(harness.params, window, jnp.asarray(fresh), *where)


@pytest.mark.parametrize(
    ("chunks", "width"), [([300], 512), ([16] * 18 + [12], 16), ([200, 100], 256)]
)
def test_contexts_and_pieces_longer_than_the_ring(chunks, width):
    json = config_json()
    weights = random_weights(json)
    taps, embedded = sequence(json, 300)
    expected = Reference(weights, json).blocks(taps, embedded, [300])[0]
    harness = build(weights, json, max_len=4096)
    window = harness.new_state(poison=np.nan).window
    assert window.tokens < 200, "the ring must be shorter than the pieces"
    assert window.tokens >= WINDOW + WIDTH
    window = harness.feed(window, taps, chunks, width)
    assert worst(harness.run(window, embedded[0], 300), expected) < 1e-5


def test_pieces_give_the_bits_of_the_whole():
    json = config_json()
    harness = build(random_weights(json), json, max_len=4096)
    taps, embedded = sequence(json, 300)
    found = [
        harness.run(harness.feed(harness.new_state().window, taps, chunks, width), embedded[0], 300)
        for chunks, width in (([300], 512), ([64, 64, 64, 64, 44], 64), ([7] * 42 + [6], 8))
    ]
    assert all(np.array_equal(found[0], other) for other in found[1:])


def test_taps_beyond_the_range_of_float16_are_projected():
    json = config_json()
    weights = random_weights(json)
    taps, embedded = sequence(json, 20, scale=3e6)
    taps[:, 4] *= 1e-12
    expected = Reference(weights, json).blocks(taps, embedded, [20])[0]
    harness = build(weights, json, dtype="float16")
    window = harness.feed(harness.new_state().window, taps, [20], 32)
    assert worst(harness.run(window, embedded[0], 20), expected) < 2e-2


def test_a_feed_forward_row_beyond_the_range_of_float16_stays_finite():
    json = config_json()
    weights = random_weights(json)
    for name in ("gate", "up"):
        weights[f"layers.1.mlp.{name}_proj.weight"] *= 1e3
    # Not less: float16 would hold few bits of them.
    weights["layers.1.mlp.down_proj.weight"] *= 1e-3
    taps, embedded = sequence(json, 20)
    expected = Reference(weights, json).blocks(taps, embedded, [20])[0]
    harness = build(weights, json, dtype="float16")
    window = harness.feed(harness.new_state().window, taps, [20], 32)
    assert worst(harness.run(window, embedded[0], 20), expected) < 2e-2


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("dflash", "changes"), [(DFLASH2, {}), (DFLASH1, {"attention_bias": True})]
)
def test_ranks_compute_what_one_computes(ranks, dflash, changes):
    """Four ranks share two key/value heads."""
    json = config_json(dflash, **changes)
    weights = random_weights(json)
    taps, embedded = sequence(json, 60)
    found = []
    for count in (1, ranks):
        harness = build(weights, json, ranks=count)
        window = harness.feed(harness.new_state().window, taps, [60], 64)
        found.append(harness.run(window, embedded[0], 60))
    assert worst(found[1], found[0]) < 1e-5


def test_a_convolution_of_ones_is_version_one():
    """As drafts are initialised: first tap 1, the others 0, no projection."""
    json, plain = config_json(), config_json(DFLASH1)
    weights = random_weights(json)
    for name, value in weights.items():
        if name.endswith("base_kernel"):
            value[:, 0], value[:, 1:] = 1, 0
        elif name.endswith("kernel_projection.weight"):
            value[:] = 0
    taps, embedded = sequence(json, 30)
    found = []
    for form in (json, plain):
        keep = {n: w for n, w in weights.items() if n in random_weights(form)}
        harness = build(keep, form)
        window = harness.feed(harness.new_state().window, taps, [30], 32)
        found.append(harness.run(window, embedded[0], 30))
    assert np.array_equal(*found)


def test_rows_give_the_same_bits_beside_any_neighbours():
    json = config_json()
    harness = build(random_weights(json), json)
    taps, embedded = sequence(json, 60, blocks=3)
    alone = harness.feed(harness.new_state().window, taps, [60], 64, slot=2)
    expected = harness.run(alone, embedded[0], 60, slot=2)
    window = harness.new_state(poison=np.nan).window
    for slot, length in ((1, 33), (3, 5), (2, 60)):
        window = harness.feed(window, taps[:, :length], [length], 64, slot=slot)
    x = np.zeros((4, WIDTH, 64), np.float32)
    x[1], x[2], x[3] = embedded[1], embedded[0], embedded[2]
    where = (jnp.asarray([0, 33, 60, 5]), jnp.asarray([False, True, True, True]))
    hidden, _ = harness.block(
        harness.params, window, jnp.asarray(x), *where, jnp.asarray([0, 1, 2, 3])
    )
    assert np.array_equal(np.asarray(hidden[2]), expected)
    assert not np.asarray(hidden[0]).any()


def test_a_row_that_is_not_live_leaves_its_window_alone():
    json = config_json()
    harness = build(random_weights(json), json)
    taps, _ = sequence(json, 30)
    window = harness.feed(harness.new_state().window, taps, [30], 32)
    x = jnp.zeros((2, WIDTH, 64))
    dead = (jnp.asarray([30, 9]), jnp.asarray([False, False]), jnp.asarray([1, 2]))
    _, after = harness.block(harness.params, window, x, *dead)
    ring = slice(window.ring, 3 * window.ring)
    assert np.array_equal(window.kv.k[ring], after.kv.k[ring])
    assert PAGE * window.ring == window.tokens
