"""The forms of the gated delta rule in plain JAX: step by step, in blocks, in chunks.

Oracle: the recurrence token by token in float64 over ordinary and adversarial inputs (gdn_oracle.py).
"""

from functools import partial

import gdn_oracle as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from onecat_jax.custom_calls import gdn

FLOAT32, FLOAT64 = 2e-5, 1e-10  # of the largest value
HEADS, DIMS = (2, 4), (32, 16)
LENGTHS = (1, 63, 64, 65, 1000)
BLOCK = 16


def inputs_of(x: oracle.GdnInputs, dtype) -> tuple[gdn.GDNInputs, jax.Array]:
    """One sequence as a batch of one, and its state the engine's way round, [1, Hv, Dv, Dk]."""
    arrays = {
        name: jnp.asarray(getattr(x, name), dtype)[None] for name in ("q", "k", "v", "g", "beta")
    }
    return gdn.GDNInputs(**arrays), jnp.asarray(np.swapaxes(x.state, 1, 2), dtype)[None]


@jax.jit
def steps(x: gdn.GDNInputs, state: jax.Array):
    """`step` over all tokens, by a device loop."""

    def body(state, token):
        o, state = gdn.step(jax.tree.map(lambda a: a[:, None], token), state)
        return state, o[:, 0]

    state, out = lax.scan(body, state, jax.tree.map(lambda a: jnp.moveaxis(a, 1, 0), x))
    return jnp.moveaxis(out, 0, 1), state


@jax.jit
def blocks(x: gdn.GDNInputs, state: jax.Array):
    """`block` over sixteen tokens at a time, the last one shorter."""
    rows = x.k.shape[1]
    whole = rows // BLOCK * BLOCK

    def cut(a: jax.Array) -> jax.Array:
        return jnp.moveaxis(a[:, :whole].reshape(a.shape[0], -1, BLOCK, *a.shape[2:]), 1, 0)

    def body(state, part):
        o, state = gdn.block(part, state)
        return state, o

    state, out = lax.scan(body, state, jax.tree.map(cut, x))
    out = jnp.moveaxis(out, 0, 1).reshape(out.shape[1], whole, *out.shape[3:])
    if whole == rows:
        return out, state
    rest, state = gdn.block(jax.tree.map(lambda a: a[:, whole:], x), state)
    return jnp.concatenate([out, rest], axis=1), state


chunks = jax.jit(gdn.chunked)
FORMS = {"step": steps, "block": blocks, "chunk": chunks}


def errors(form, x: oracle.GdnInputs, dtype) -> tuple[float, float]:
    out, state = form(*inputs_of(x, dtype))
    return oracle.relative_errors(x, np.asarray(out[0]), np.swapaxes(np.asarray(state[0]), 1, 2))


make = partial(oracle.inputs, heads=HEADS, dims=DIMS)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("form", FORMS)
def test_float32_stays_close(form, length):
    worst = {
        kind: max(errors(FORMS[form], make(kind, length), jnp.float32)) for kind in oracle.KINDS
    }
    assert max(worst.values()) <= FLOAT32, worst


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("form", FORMS)
def test_float64_shows_that_the_algebra_is_exact(form, length):
    with jax.enable_x64(True):
        worst = {
            kind: max(errors(FORMS[form], make(kind, length), jnp.float64)) for kind in oracle.KINDS
        }
    assert max(worst.values()) <= FLOAT64, worst


@pytest.mark.parametrize("kind", ["random", "decay_mixed", "equal_keys"])
def test_the_dimensions_of_a_real_head(kind):
    x = oracle.inputs(kind, 130)
    assert max(errors(chunks, x, jnp.float32)) <= FLOAT32


@pytest.mark.parametrize("kind", ["random", "decay_rare_reset", "opposite_keys"])
def test_a_cut_on_the_grid_of_64_changes_little_and_the_values_not(kind):
    x = make(kind, 321)
    whole, end = chunks(*inputs_of(x, jnp.float32))
    for at in (64, 256):
        first, second = oracle.split(x, at, x.state)
        out, state = chunks(*inputs_of(first, jnp.float32))
        more, state = chunks(inputs_of(second, jnp.float32)[0], state)
        joined = np.concatenate([out, more], axis=1)
        assert np.abs(joined - whole).max() <= FLOAT32 * np.abs(whole).max()
        assert np.abs(state - end).max() <= FLOAT32 * max(np.abs(end).max(), np.abs(x.state).max())


def test_rows_without_decay_and_write_leave_the_state_alone():
    """How padding is passed: g = 0 and beta = 0."""
    x = make("random", 70)
    still = oracle.GdnInputs(x.q, x.k, x.v, 0 * x.g, 0 * x.beta, x.state)
    for form in FORMS.values():
        _, state = form(*inputs_of(still, jnp.float32))
        assert np.array_equal(np.swapaxes(np.asarray(state[0]), 1, 2), x.state)
