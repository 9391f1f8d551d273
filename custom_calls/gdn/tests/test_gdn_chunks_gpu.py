"""The kernels of long inputs on whatever GPU is present: its own, also as PTX that the driver translates, and the sm_70 ones.

Oracle: the recurrence token by token in float64 (gdn_rows_oracle.py); for bits, the same sequence in other surroundings. On
GPUs without m8n8k4 hardware the sm_70 kernels are emulated: their values and indexing are proved here, their speed is not.
"""

import itertools
from dataclasses import replace

import gdn_rows_oracle as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gdn_gpu_cases import batch, geometry, part, same
from gdn_rows_cases import call, run
from test_gdn_rows_values import check, thousand_tokens

from onecat_jax.custom_calls import gdn
from onecat_jax.custom_calls.gdn.specs import SPECS
from onecat_jax.custom_calls.linear import Layer
from onecat_jax.custom_calls.rows import LiveRows

pytestmark = pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")

CLOSE, ROUNDED = 5e-6, 2e-3  # of the largest value: operands of two terms, and of one
LENGTHS = [[17, 1, 0], [64, 63, 2], [65, 40, 64], [128, 127, 66], [200, 129, 16]]


@pytest.mark.parametrize("count", LENGTHS, ids=str)
def test_values_of_tails_and_padding_rows(chunk_policy, count):
    g = geometry(slots=7)
    x = batch(g, count, max(17, *count))
    check(g, x, run(x, chunk_policy), CLOSE)


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_values_over_the_table(chunk_policy, spec):
    g = geometry(spec, layers=2)
    x = batch(g, [150, 77], 150)
    check(g, x, run(x, chunk_policy), CLOSE)


def recur_rounded(x, policy):
    rows = gdn.GDNRows(x.slots, x.start, x.count, LiveRows.of(jnp.asarray(x.count)))
    weights = gdn.GDNWeights(*(jnp.asarray(a) for a in (x.conv, x.a_log, x.dt_bias)))
    new = (jnp.asarray(a) for a in (x.qkv, x.gates, x.states, x.windows))
    how = {"policy": policy, "float16_products": True}
    found = gdn.recur(*new, rows, weights, Layer(x.layer), **how)
    return tuple(map(np.asarray, found))


def test_values_with_products_of_rounded_operands(chunk_policy):
    g = geometry(layers=2)
    x = batch(g, [300, 65], 300)
    found = recur_rounded(x, chunk_policy)
    check(g, x, found, ROUNDED)
    with pytest.raises(AssertionError):
        check(g, x, found, CLOSE)


@pytest.mark.parametrize("kind", ["random", "equal keys", "resets"])
def test_a_thousand_tokens_stay_close(chunk_policy, kind):
    g = geometry(SPECS[-2])
    x = batch(g, [1000], 1000)
    qkv, gates = thousand_tokens(kind, g)
    if kind == "resets":  # no decay but for every fortieth token, which forgets all
        forgets = np.random.default_rng(3).random(1000) < 0.025
        gates[:, g.value_heads :] = np.where(forgets, 200.0, -14.0)[:, None]
    x = replace(x, qkv=qkv.astype(np.float16)[None], gates=gates[None])
    check(g, x, run(x, chunk_policy), 2e-5)


@pytest.mark.parametrize("a", [-200.0, 0.0, 200.0])
@pytest.mark.parametrize("b", [-200.0, 200.0])
def test_gates_at_their_ends(chunk_policy, a, b):
    g = geometry()
    x = batch(g, [100, 40], 100)
    x.gates[..., : g.value_heads], x.gates[..., g.value_heads :] = b, a
    check(g, x, run(x, chunk_policy), 2e-5)


def test_single_rows_continue_a_long_input(chunk_policy):
    g = geometry()
    x = batch(g, [170, 131], 170)
    want = oracle.sequence(
        g, x.weights, x.qkv[0], x.gates[0], x.states[x.slots[0]], x.windows[x.slots[0]]
    )
    out, states, windows = run(part(x, 0, 128, x.states, x.windows), chunk_policy)
    outs = [out]
    for a, b in ((128, 144), (144, 145), (145, 170)):
        out, states, windows = run(part(x, a, b, states, windows), chunk_policy)
        outs.append(out)
    assert np.abs(np.concatenate(outs, 1)[0] - want[0]).max() <= CLOSE * np.abs(want[0]).max()
    assert np.abs(states[x.slots[0]] - want[1]).max() <= CLOSE * np.abs(want[1]).max()


# ---- bits


@pytest.mark.parametrize("cuts", [[0, 64, 300], [0, 128, 192, 300], [0, 192, 300]])
def test_cutting_at_chunks_changes_no_bit(chunk_policy, cuts):
    x = batch(geometry(), [300, 150], 300)
    want = run(x, chunk_policy)
    states, windows, outs = x.states, x.windows, []
    for a, b in itertools.pairwise(cuts):
        out, states, windows = run(part(x, a, b, states, windows), chunk_policy)
        outs.append(out)
    assert same((np.concatenate(outs, axis=1), states, windows), want)


def test_batch_order_and_padding_change_no_bit(chunk_policy):
    x = batch(geometry(slots=8), [100, 64, 0, 130, 17], 130)
    wide = replace(
        x,
        qkv=np.pad(x.qkv, ((0, 0), (0, 90), (0, 0)), constant_values=np.nan),
        gates=np.pad(x.gates, ((0, 0), (0, 90), (0, 0)), constant_values=np.nan),
    )
    for b, count in enumerate(x.count):
        wide.qkv[b, count:], wide.gates[b, count:] = np.nan, np.nan
    out, states, windows = run(wide, chunk_policy)
    assert not out[:, 130:].any()
    for order in ([0], [3], [4, 3, 1], [1, 0, 2, 3, 4]):
        found, found_states, found_windows = run(x.rows(order), chunk_policy)
        assert same([found], [out[order, :130]])
        at = x.slots[order]
        assert same((found_states[at], found_windows[at]), (states[at], windows[at]))


def test_a_hundred_runs_give_the_same_bits(chunk_policy):
    x = batch(geometry(layers=2), [130, 70], 130)
    first = run(x, chunk_policy)
    assert all(same(run(x, chunk_policy), first) for _ in range(100))


# ---- refusals


def test_a_slot_outside_the_cache_gives_zeros_and_no_fault(chunk_policy):
    x = batch(geometry(), [70, 70], 70)
    alone = run(x.row(1), chunk_policy)
    for slot in (-1, 15, 2**31 - 1, -(2**31)):
        x.slots[0] = slot
        out, states, windows = run(x, chunk_policy)
        assert not out[0].any()
        assert same((out[1:], states, windows), alone)


def test_a_traced_layer_outside_the_stack_gives_zeros(chunk_policy):
    x = batch(geometry(), [70, 70], 70)
    arrays = (x.qkv, x.gates, x.states, x.windows, x.slots, x.start, x.count)
    weights = (x.conv, x.a_log, x.dt_bias)
    out, *caches = call(*map(jnp.asarray, (*arrays, *weights)), Layer(jnp.int32(-1)), chunk_policy)
    assert not np.asarray(out).any()
    assert same(map(np.asarray, caches), (x.states, x.windows))
