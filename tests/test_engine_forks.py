"""The fork program copies what it is told to, in every storage type, on every layer, in place, and nothing else.

Oracle: NumPy on a state of random bits. Not covered: which pairs the engine asks for (test_engine_samples).
"""

import re
from functools import partial

import jax
import numpy as np
import pytest

from onecat_jax import LLM
from onecat_jax.forks import Forks, fork
from onecat_jax.state import CacheState

PAIRS = (
    (3, 4, 5, 2, 7),
    (1, 2, 9, 8, 16),
    (3, 5, 5, 7, 0),
)  # slots from, to; pages from, to; filled


def forks(live: int) -> Forks:
    columns = np.array(PAIRS, np.int32)
    return Forks(np.int32(live), columns[:, :2], columns[:, 2:4], columns[:, 4])  # type: ignore[arg-type]


def random_state(like: CacheState) -> CacheState:
    rng = np.random.default_rng(0)

    def values(a: jax.Array) -> jax.Array:
        drawn = rng.integers(-9, 9, a.shape)  # what every type holds exactly
        return jax.numpy.asarray(drawn).astype(a.dtype)

    return jax.tree.map(values, like)


def by_layer(flat: jax.Array, per_layer: int) -> np.ndarray:
    return np.array(flat.astype(np.float32)).reshape(-1, per_layer, *flat.shape[1:])


def parts(state: CacheState) -> dict[str, np.ndarray]:
    """Arrays with the layers on an axis of their own."""
    kv, gdn, counts = state.kv, state.gdn, state.history.counts
    return {
        "k": by_layer(kv.k, kv.pages),
        "v": by_layer(kv.v, kv.pages),
        "state": by_layer(gdn.state, gdn.slots),
        "window": by_layer(gdn.window, gdn.slots),
        "history": by_layer(counts, counts.shape[0]),
    }


def expected(before: dict[str, np.ndarray], live: int) -> dict[str, np.ndarray]:
    after = {name: array.copy() for name, array in before.items()}
    for slot, to, page, to_page, filled in PAIRS[:live]:
        for name in ("state", "window", "history"):
            after[name][:, to] = before[name][:, slot]
        for name in ("k", "v"):
            after[name][:, to_page, :filled] = before[name][:, page, :filled]
    return after


def assert_in_place(hlo: str, state: CacheState) -> None:
    """Of the cache's shape there are only parameters, loops, updates and calls that work in place."""
    dims = ",".join(map(str, state.kv.k.shape))
    outside = "".join(part for part in hlo.split("\n\n") if not part.strip().startswith("%fused"))
    found = set(re.findall(rf"= \w+\[{dims}\]\S* ([\w-]+)\(", outside))
    assert found >= {"get-tuple-element", "parameter"}, "the text is read as it is written"
    assert found <= {"get-tuple-element", "parameter", "while", "custom-call"}


@pytest.mark.parametrize("kv", ["float32", "float16", "fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize(("dtype", "backend"), [("float16", "auto"), ("float32", "plain")])
def test_a_fork_copies_slots_and_the_filled_part_of_pages(kv, dtype, backend):
    llm = LLM(
        "tiny", dtype=dtype, kv_cache_dtype=kv, backend=backend, max_model_len=128, max_num_seqs=6
    )
    inner = llm._engine
    step = jax.jit(partial(fork, options=inner.options), donate_argnums=1)
    if (
        backend == "auto"
    ):  # in plain JAX the CPU compiler widens a whole float8 cache, here as in prefill
        assert_in_place(
            step.lower(inner.params, inner.state, forks(0)).compile().as_text(), inner.state
        )
    for live in range(4):
        state = random_state(inner.state)
        before = parts(state)
        found = parts(step(inner.params, state, forks(live))[0])
        wanted = expected(before, live)
        for name in before:
            np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)
