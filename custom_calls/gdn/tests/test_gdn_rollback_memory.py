"""A device loop that verifies and commits writes states and windows where they lie. Oracle: buffer addresses, and the
optimised HLO."""

import re

import jax
import jax.numpy as jnp
import pytest
from gdn_rollback_cases import commit_call, random_round, verify_call
from gdn_rows_cases import CPU, PLAIN
from gdn_rows_oracle import Geometry
from jax import lax

from onecat_jax.custom_calls.linear import Layer

pytestmark = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="about aliasing on the CPU routes"
)
G = Geometry(slots=8)
COUNT, WIDTH = [3, 0, 2], 3


def rounds(policy, donated: tuple[int, ...] = (0, 1)):
    """Verify rounds in a while_loop over the caches, the layers of each in a fori_loop."""
    x = random_round(G, COUNT, WIDTH)
    weights = tuple(map(jnp.asarray, x.weights))

    def program(states, windows, qkv, gates, slots, start, count):
        def verify_layers(states, windows, start):
            def layer(i, total):
                place = x.first_layer + i
                new = (lax.dynamic_index_in_dim(a, place, keepdims=False) for a in (qkv, gates))
                flat = place * G.slots + slots
                where = (flat, start, count)
                o = verify_call(*new, states, windows, *where, weights, Layer(i), policy)
                return total + jnp.sum(o)

            return lax.fori_loop(0, len(x.conv), layer, jnp.float32(0))

        def body(carry):
            i, total, start, *caches = carry
            total += verify_layers(*caches, start)
            # As in a real round, what is replayed depends on what was verified.
            accepted = jnp.where(total > 1e30, 0, count)
            where = (slots, start, accepted)
            rest = (weights, x.first_layer, G.slots, policy)
            return i + 1, total, start + accepted, *commit_call(qkv, gates, *caches, *where, *rest)

        return lax.while_loop(
            lambda c: c[0] < 3, body, (jnp.int32(0), jnp.float32(0), start, states, windows)
        )

    arrays = (x.states, x.windows, x.qkv, x.gates, x.slots, x.start, x.count)
    args = tuple(jnp.nan_to_num(jnp.asarray(a)) for a in arrays)
    return jax.jit(program, donate_argnums=donated).lower(*args).compile(), args


def copies(compiled, args) -> list[str]:
    whole = "|".join(",".join(map(str, a.shape)) for a in args[:2])
    return re.findall(rf"= \w+\[(?:{whole})\]\S* copy\(", compiled.as_text())


@pytest.mark.parametrize("policy", [CPU, PLAIN], ids=["handler", "plain"])
def test_a_device_loop_of_rounds_copies_no_cache(policy):
    compiled, args = rounds(policy)
    assert not copies(compiled, args)
    before = [a.unsafe_buffer_pointer() for a in args[:2]]
    *_, states, windows = compiled(*args)
    assert [a.unsafe_buffer_pointer() for a in (states, windows)] == before


def test_the_check_can_fail():
    """Without donation the caches must be copied."""
    assert copies(*rounds(CPU, donated=()))
