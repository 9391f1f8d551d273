"""The kernels of few rows on whatever GPU is present: its own machine code, and PTX that the driver translates.

Oracle: the recurrence token by token in float64 (gdn_rows_oracle.py); for bits, the same row in other surroundings. Slots and
rows that no result may depend on hold NaN.
"""

import itertools
from dataclasses import replace

import gdn_rows_oracle as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gdn_gpu_cases import TINY, batch, gated, geometry, rounds, same
from gdn_rollback_cases import commit, one_by_one, recur, soak, verify
from gdn_rows_cases import PLAIN, call, run
from jax import lax
from test_gdn_rollback_values import check as check_round
from test_gdn_rows_values import check, thousand_tokens

from onecat_jax.custom_calls import gdn
from onecat_jax.custom_calls.gdn.specs import SPECS
from onecat_jax.custom_calls.linear import Layer

pytestmark = pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")

CLOSE = 3e-6  # of the largest value


# ---- values


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_values_over_the_table(policy, spec):
    g = geometry(spec, layers=2)
    for width, count in ((1, [1, 1, 0]), (4, [4, 3, 0, 1]), (16, [16, 11])):
        x = batch(g, count, width)
        check(g, x, run(x, policy), CLOSE)


def test_verified_and_replayed_values(policy):
    g = geometry(slots=7)
    x = rounds(g, [5, 3, 0, 1, 2], 5)
    check_round(g, x, [verify(x, i, policy) for i in range(2)], commit(x, policy))


def test_the_plain_route_gives_the_same_values(policy):
    g = geometry()
    x = batch(g, [8, 7], 8)
    for found, want in zip(run(x, policy), run(x, PLAIN), strict=True):
        at = np.isfinite(want)
        assert np.array_equal(np.isfinite(found), at)
        assert np.abs(found[at] - want[at]).max() <= 2e-5 * np.abs(want[at]).max()


@pytest.mark.parametrize("a", [-200.0, 0.0, 200.0])
@pytest.mark.parametrize("b", [-200.0, 200.0])
def test_gates_at_their_ends(policy, a, b):
    g = geometry()
    x = batch(g, [6, 4], 6)
    x.gates[..., : g.value_heads], x.gates[..., g.value_heads :] = b, a
    check(g, x, run(x, policy))


@pytest.mark.parametrize("kind", ["random", "equal keys"])
def test_a_thousand_tokens_stay_close(policy, kind):
    g = geometry(SPECS[-2])
    x = batch(g, [1], 1)
    qkv, gates = thousand_tokens(kind, g)
    qkv = qkv.astype(np.float16)
    want = oracle.sequence(g, x.weights, qkv, gates, x.states[x.slots[0]], x.windows[x.slots[0]])
    states, windows, outs = x.states, x.windows, []
    for t in range(0, 1000, 8):
        new = {"qkv": qkv[None, t : t + 8], "gates": gates[None, t : t + 8], "start": x.start + t}
        part = replace(x, **new, states=states, windows=windows, count=np.array([8], np.int32))
        out, states, windows = run(part, policy)
        outs.append(out[0])
    assert np.abs(np.concatenate(outs) - want[0]).max() <= 2e-5 * np.abs(want[0]).max()


# ---- bits


@pytest.mark.parametrize("width", [2, 8, 16])
def test_verify_and_commit_of_any_number_of_rows_are_as_many_single_steps(policy, width):
    """Also: other layers and slots, all of them NaN, stay as they are; NaN rows beyond the count change nothing."""
    x = rounds(geometry(slots=20), list(range(width + 1)), width)
    before = x.states.copy(), x.windows.copy()
    outs, *caches = one_by_one(x, policy)
    for index, want in enumerate(outs):
        assert same([verify(x, index, policy)], [want])
    assert same((x.states, x.windows), before)
    assert same(commit(x, policy), caches)
    assert not same(caches, before)


def test_several_rows_in_one_call_are_as_many_single_steps(policy):
    x = rounds(geometry(slots=20), list(range(17)), 16)
    outs, states, windows = one_by_one(x, policy)
    for index, want in enumerate(outs):
        o, found_states, found_windows = recur(x, index, policy)
        assert same([o], [want])
        flat = x.flat(index)
        assert same((found_states[flat], found_windows[flat]), (states[flat], windows[flat]))


@pytest.mark.parametrize("cuts", [[0, 1, 2, 3, 4, 5, 6, 7, 8, 16], [0, 5, 6, 16], [0, 15, 16]])
def test_cutting_a_sequence_into_calls_changes_no_bit(policy, cuts):
    whole = batch(geometry(), [16, 16], 16)
    want = run(whole, policy)
    states, windows, outs = whole.states, whole.windows, []
    for a, b in itertools.pairwise(cuts):
        part = replace(
            whole, qkv=whole.qkv[:, a:b], gates=whole.gates[:, a:b], states=states, windows=windows,
            start=whole.start + a, count=np.full(2, b - a, np.int32),
        )  # fmt: skip
        out, states, windows = run(part, policy)
        outs.append(out)
    assert same((np.concatenate(outs, axis=1), states, windows), want)


@pytest.mark.parametrize("width", [1, 4])
def test_a_row_has_the_same_bits_whatever_stands_beside_it(policy, width):
    x = batch(geometry(slots=10), [width] * 5 + [0, 1, width], width)
    alone = [run(x.row(b), policy) for b in range(8)]
    for order in ([0, 1], [3, 1, 0], [7, 6, 5, 4, 3, 2, 1, 0]):
        out, states, windows = run(x.rows(order), policy)
        for place, b in enumerate(order):
            slot = x.slots[b]
            want = alone[b][0][0], alone[b][1][slot], alone[b][2][slot]
            assert same((out[place], states[slot], windows[slot]), want)


def test_a_hundred_runs_give_the_same_bits(policy):
    x = batch(geometry(SPECS[0], layers=2), [3, 3], 3)
    first = run(x, policy)
    assert all(same(run(x, policy), first) for _ in range(100))


def test_a_recorded_loop_over_layers_follows_changing_inputs(policy):
    g = geometry(slots=6)
    x = batch(g, [2, 2], 2)
    weights = [jnp.asarray(a) for a in (x.conv, x.a_log, x.dt_bias)]
    states, windows = jnp.asarray(np.nan_to_num(x.states)), jnp.asarray(np.nan_to_num(x.windows))
    slots = jnp.array([1, 4], jnp.int32)

    @jax.jit
    def loop(qkv, gates, states, windows, start, count):
        def body(i, carry):
            outs, *caches = carry
            where = (i * g.slots + slots, start, count)
            o, *caches = call(qkv, gates, *caches, *where, *weights, Layer(i), policy)
            return lax.dynamic_update_index_in_dim(outs, o, i, 0), *caches

        outs = jnp.zeros((g.layers, *qkv.shape[:2], g.value_heads, 128))
        return lax.fori_loop(0, g.layers, body, (outs, states, windows))

    for seed in range(8):
        rng = np.random.default_rng(seed)
        qkv = rng.standard_normal(x.qkv.shape).astype(np.float16)
        start, count = rng.integers(0, 2, 2, np.int32), rng.integers(0, 3, 2, np.int32)
        found = loop(qkv, x.gates, states, windows, start, count)
        outs, *caches = [], states, windows
        for i in range(g.layers):
            where = (i * g.slots + slots, start, count)
            o, *caches = call(qkv, x.gates, *caches, *where, *weights, Layer(i), policy)
            outs.append(np.asarray(o))
        assert same([*map(np.asarray, found)], [np.stack(outs), *map(np.asarray, caches)])


@pytest.mark.parametrize("tokens", [2000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_random_accepted_lengths_over_thousands_of_tokens(policy, tokens):
    g = geometry(layers=2)
    taken, agree, replayed, stepped = soak(g, int(tokens / 3.3), "float16", policy, "float16")
    assert min(taken) >= tokens
    assert agree
    assert same(map(np.asarray, replayed), map(np.asarray, stepped))
    assert np.isfinite(np.asarray(replayed[0])).any()


# ---- with norm and gate, keeping rows


@pytest.mark.parametrize("width", [1, 8])
def test_gated_outputs_are_the_normed_ones_and_rows_are_kept(policy, width):
    g = geometry(slots=7)
    x = rounds(g, [width, 0, width, 1], width)
    rng = np.random.default_rng(width)
    z = rng.standard_normal((4, width, g.value_heads * 128)).astype(np.float16)
    weight = rng.uniform(0.5, 1.5, (len(x.conv), 128)).astype(np.float32)
    kept = gdn.KeptRows(jnp.full(x.qkv.shape, 7, jnp.float16), jnp.full(x.gates.shape, 7.0))
    verified, qkv, gates, stepped, *caches = gated(
        x, z, gdn.OutputNorm(jnp.asarray(weight), 1e-6), kept, policy
    )
    o, *plain = recur(x, 0, policy)
    wide, gate = o.astype(np.float64), z.astype(np.float64).reshape(o.shape)
    want = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * weight[0]
    want *= gate / (1 + np.exp(-gate))
    assert np.abs(verified - want).max() <= 6e-4 * np.abs(want).max()
    assert same([verified, *caches], [stepped, *plain])
    real = np.arange(width) < x.count[:, None]
    for found, given in ((qkv, x.qkv), (gates, x.gates)):
        want = np.full_like(found, 7)
        want[x.first_layer][real] = given[x.first_layer][real]
        assert same([found], [want])


# ---- refusals


@pytest.mark.parametrize("slot", [-1, 15, 2**31 - 1, -(2**31)])
def test_a_slot_outside_the_cache_gives_zeros_and_no_fault(policy, slot):
    x = batch(geometry(), [2, 2], 2)
    x.slots[0] = slot
    out, states, windows = run(x, policy)
    alone = run(x.row(1), policy)
    assert not out[0].any()
    assert same((out[1:], states, windows), alone)


def test_a_layer_outside_the_stack_gives_zeros_and_no_fault(policy):
    x = batch(geometry(), [2, 2], 2)
    out, *caches = run(x, policy, Layer(jnp.int32(3)))
    assert not out.any()
    assert same(caches, (x.states, x.windows))


def test_operands_of_another_shape_are_refused_with_numbers(policy):
    x = batch(geometry(TINY), [2, 2], 2)
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"gates are \[2, 2, 15\], must be \[2, 2, 16\]"
    ):
        run(replace(x, gates=x.gates[..., 1:]), policy)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"must be \[2\], one is \[1\]"):
        run(replace(x, start=x.start[:1]), policy)
    check(geometry(TINY), x, run(x, policy), CLOSE)
