"""Verified and replayed rows on the CPU handlers. Oracle: `recur` with one row at a time, whose own bits and values are the
subject of test_gdn_rows_*.py. Values are compared with float64 in test_gdn_rollback_values.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gdn_rollback_cases import commit, commit_call, one_by_one, random_round, verify, verify_call
from gdn_rows_cases import CPU, call
from gdn_rows_oracle import Geometry
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from onecat_jax import _ext
from onecat_jax.custom_calls.linear import Layer

pytestmark = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="about the handlers that run on CPU"
)
SMALL = Geometry(slots=20)
TINY = Geometry(4, 8, 128, 128, slots=20)
WINDOWS = ("float32", "float16", "bfloat16")
ISAS = ("generic", "avx2", "avx512", "amx")


def same(a, b) -> bool:
    return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("geometry", [SMALL, TINY], ids=["small", "tiny"])
@pytest.mark.parametrize("window_dtype", WINDOWS)
def test_verify_and_commit_of_0_to_16_rows_are_as_many_single_steps(window_dtype, geometry):
    """Also: other layers and slots, all of them NaN, stay as they are; NaN rows beyond the count change nothing."""
    x = random_round(geometry, list(range(17)), 16, window_dtype=window_dtype)
    before = x.states.copy(), x.windows.copy()
    outs, *caches = one_by_one(x)
    for index, want in enumerate(outs):
        assert same([verify(x, index)], [want])
    assert same((x.states, x.windows), before)
    assert same(commit(x), caches)
    assert not same(caches, before)


@pytest.mark.parametrize("width", [2, 3])
def test_windows_of_other_widths(width):
    x = random_round(Geometry(slots=8, width=width), [0, 1, 2, 3, 4], 4)
    outs, *caches = one_by_one(x)
    assert same([verify(x, 0), verify(x, 1), *commit(x)], [*outs, *caches])


@pytest.mark.parametrize("window_dtype", WINDOWS)
def test_every_instruction_set_gives_the_same_bits(window_dtype):
    x = random_round(Geometry(2, 4, 64, 48), [7, 3, 0, 1], 7, window_dtype=window_dtype)
    best, found = _ext.cpu_isa(), {}
    try:
        for isa in ISAS[: ISAS.index(best) + 1]:
            _ext.force_cpu_isa(isa)
            found[isa] = [verify(x, 0), *commit(x)]
    finally:
        _ext.force_cpu_isa("")
    for isa, results in found.items():
        assert same(results, found["generic"]), isa


def soak(g: Geometry, rounds: int, window_dtype: str):
    """Rounds of up to eight rows with random accepted lengths, next to the same tokens one by one.

    Returns how many tokens each sequence took, whether all outputs agreed, and both pairs of caches.
    """
    batch, width = 3, 8
    x = random_round(g, [0, 0, 0], width, window_dtype=window_dtype, first_layer=0)
    weights = tuple(map(jnp.asarray, x.weights))
    slots = jnp.asarray(x.slots)

    def steps(caches, qkv, gates, flat, start, count, layer):
        outs = []
        for t in range(width):
            new = (qkv[:, t : t + 1], gates[:, t : t + 1])
            live = (count > t).astype(jnp.int32)
            o, *caches = call(*new, *caches, flat, start + t, live, *weights, layer, CPU)
            outs.append(o)
        return jnp.concatenate(outs, axis=1), caches

    def one_round(i, carry):
        position, agree, replayed, stepped = carry
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), i), 3)
        qkv = jax.random.normal(keys[0], (g.layers, batch, width, g.channels))
        gates = 3 * jax.random.normal(keys[1], (g.layers, batch, width, 2 * g.value_heads))
        count = jax.random.randint(keys[2], (batch,), 0, width + 1)
        full = jnp.full(batch, width, jnp.int32)
        for index in range(g.layers):
            flat, layer = index * g.slots + slots, Layer(index)
            new = (qkv[index], gates[index])
            o = verify_call(*new, *replayed, flat, position, full, weights, layer, CPU)
            want, stepped = steps(stepped, *new, flat, position, count, layer)
            real = (jnp.arange(width) < count[:, None])[..., None, None]
            agree &= jnp.all(jnp.where(real, o == want, True))
        kept = (qkv.astype(window_dtype), gates)
        replayed = commit_call(*kept, *replayed, slots, position, count, weights, 0, g.slots, CPU)
        return position + count, agree, tuple(replayed), tuple(stepped)

    caches = (jnp.asarray(x.states), jnp.asarray(x.windows))
    start = (jnp.zeros(batch, jnp.int32), jnp.bool_(True), caches, caches)
    return jax.jit(lambda: lax.fori_loop(0, rounds, one_round, start))()


@pytest.mark.parametrize("window_dtype", WINDOWS)
def test_two_thousand_tokens_with_random_accepted_lengths(window_dtype):
    tokens, agree, replayed, stepped = soak(Geometry(layers=2), 600, window_dtype)
    assert min(tokens) >= 2000
    assert agree
    assert same(replayed, stepped)
    assert np.isfinite(np.asarray(replayed[0])).any()


def ranks():
    """Two rounds stacked on a leading axis, as the ranks of a mesh hold them, and what each gives alone."""
    g = Geometry(slots=8)
    xs = [random_round(g, count, 4) for count in ([4, 0, 2, 1], [1, 3, 4, 0])]
    xs[1] = type(xs[1])(**{**vars(xs[1]), "slots": xs[0].slots, "start": xs[0].start})
    arrays = [(*x.kept, x.states, x.windows, x.slots, x.start, x.count, x.weights) for x in xs]
    stacked = jax.tree.map(lambda *a: jnp.stack(a), *arrays)
    return stacked, [(verify(x, 0), *commit(x)) for x in xs]


def both(qkv, gates, states, windows, slots, start, count, weights):
    """Outputs of the stack's first layer, and the caches after the replay."""
    new = (qkv[1].astype(jnp.float32), gates[1], states, windows, 8 + slots, start, count)
    o = verify_call(*new, weights, Layer(0), CPU)
    return o, *commit_call(qkv, gates, states, windows, slots, start, count, weights, 1, 8, CPU)


def test_ranks_of_a_mesh_work_on_their_own_parts():
    """Two ranks in a whole session; one where this file runs alone and there is only one device."""
    devices = jax.devices()[:2]
    mesh = Mesh(np.array(devices), ("tp",))
    stacked, alone = ranks()
    stacked = jax.tree.map(lambda a: a[: len(devices)], stacked)

    def local(*args):
        found = both(*jax.tree.map(lambda a: a[0], args))
        return jax.tree.map(lambda a: a[None], found)

    mapped = jax.shard_map(local, mesh=mesh, in_specs=P("tp"), out_specs=P("tp"), check_vma=False)
    found = jax.jit(mapped)(*stacked)
    for rank, want in enumerate(alone[: len(devices)]):
        assert same([a[rank] for a in found], want)


def test_vmap_is_one_call_after_the_other():
    stacked, alone = ranks()
    found = jax.jit(jax.vmap(both))(*stacked)
    for place, want in enumerate(alone):
        assert same([a[place] for a in found], want)
