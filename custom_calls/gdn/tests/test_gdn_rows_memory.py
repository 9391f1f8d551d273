"""States and windows are updated where they lie. Oracle: buffer addresses, and the optimised HLO of a device loop."""

import re

import jax
import jax.numpy as jnp
import pytest
from gdn_rows_cases import CPU, PLAIN, call, random_batch
from gdn_rows_oracle import Geometry
from jax import lax

from onecat_jax.custom_calls.linear import Layer

pytestmark = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="about aliasing on the CPU routes"
)
G = Geometry(slots=8)


def loop(x, policy):
    """Three layers by a device loop over donated caches."""
    rest = [
        jnp.asarray(a) for a in (x.slots % G.slots, x.start, x.count, x.conv, x.a_log, x.dt_bias)
    ]

    def program(states, windows, qkv, gates, slots, *rest):
        def body(i, carry):
            o, states, windows = carry
            own = i * G.slots + slots
            new, *caches = call(qkv, gates, states, windows, own, *rest, Layer(i), policy)
            return (o + new, *caches)

        zeros = jnp.zeros((*qkv.shape[:2], G.value_heads, G.value_dim))
        return lax.fori_loop(0, G.layers, body, (zeros, states, windows))

    caches = (jnp.nan_to_num(jnp.asarray(x.states)), jnp.nan_to_num(jnp.asarray(x.windows)))
    args = (*caches, jnp.asarray(x.qkv), jnp.asarray(x.gates), *rest)
    return jax.jit(program, donate_argnums=(0, 1)).lower(*args).compile(), args


@pytest.mark.parametrize("policy", [CPU, PLAIN], ids=["handler", "plain"])
@pytest.mark.parametrize("width", [1, 8])
def test_a_device_loop_copies_no_cache(width, policy):
    x = random_batch(G, [width, width, 0], width)
    compiled, args = loop(x, policy)
    whole = "|".join(",".join(map(str, a.shape)) for a in args[:2])
    assert not re.findall(rf"= \w+\[(?:{whole})\]\S* copy\(", compiled.as_text())
    before = [a.unsafe_buffer_pointer() for a in args[:2]]
    _, *caches = compiled(*args)
    assert [a.unsafe_buffer_pointer() for a in caches] == before


def test_the_check_can_fail():
    """Without donation the caches must be copied."""
    x = random_batch(G, [1, 1, 0], 1)
    arrays = [jnp.asarray(a) for a in (x.qkv, x.gates, x.states, x.windows, x.slots, x.start)]
    arrays += [jnp.asarray(a) for a in (x.count, x.conv, x.a_log, x.dt_bias)]
    text = jax.jit(lambda *a: call(*a, Layer(0), CPU)).lower(*arrays).compile().as_text()
    shape = ",".join(map(str, x.states.shape))
    assert re.findall(rf"= \w+\[{shape}\]\S* copy\(", text)
