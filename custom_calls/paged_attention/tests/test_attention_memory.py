"""Caches are written where they lie and never copied. Oracle: buffer addresses, and the optimised HLO of a device loop."""

import re

import jax
import jax.numpy as jnp
import pytest
from attention_oracle import CPU, PLAIN, TYPES, random_batch, rows_of
from jax import lax

from onecat_jax.custom_calls.paged_attention import attend, write_tokens

pytestmark = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="about aliasing on the CPU routes"
)


def loop(x, policy, width: int):
    """Writes and attends layer by layer, by a device loop over donated caches."""
    pages, kv_heads, dim = len(x.k_pages), *x.k_pages.shape[2:]
    new = jnp.ones((len(x.table), width, kv_heads, dim))

    def program(keys, values, q, table, start, count):
        def body(i, carry):
            o, keys, values = carry
            rows = rows_of(table, start, count)
            keys, values = write_tokens(keys, values, new, new, rows, i * pages, policy=policy)
            return (
                o + attend(q, keys, values, rows, i * pages, scale=0.1, policy=policy),
                keys,
                values,
            )

        return lax.fori_loop(0, 3, body, (jnp.zeros(q.shape), keys, values))

    caches = [jnp.zeros((3 * pages, *x.k_pages.shape[1:]), x.k_pages.dtype) + i for i in (0, 1)]
    where = (jnp.asarray(x.table), jnp.asarray(x.start), jnp.asarray(x.count))
    args = (*caches, jnp.asarray(x.q), *where)
    return jax.jit(program, donate_argnums=(0, 1)).lower(*args).compile(), args


# Plain JAX with float8 caches isn't here: on CPU, XLA has no float8 updates and converts the whole cache around each.
CASES = [(CPU, cache) for cache in TYPES] + [(PLAIN, "float32"), (PLAIN, "float16")]


@pytest.mark.parametrize(("policy", "cache"), CASES)
@pytest.mark.parametrize("width", [1, 40])
def test_a_device_loop_makes_no_cache_sized_buffer(width, policy, cache):
    x = random_batch([50, 70], width=width, cache=cache)
    x.table[x.table < 0] = 0
    compiled, args = loop(x, policy, width)
    shape = ",".join(map(str, args[0].shape))
    made = set(re.findall(rf"= \w+\[{shape}\]\S* ([\w-]+)\(", compiled.as_text()))
    assert made <= {"parameter", "get-tuple-element", "dynamic-update-slice", "fusion", "bitcast"}
    before = [a.unsafe_buffer_pointer() for a in args[:2]]
    _, *caches = compiled(*args)
    assert [a.unsafe_buffer_pointer() for a in caches] == before
