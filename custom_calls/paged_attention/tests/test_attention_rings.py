"""Writing to rings of pages and attending over them with a window. Oracle: the same calls over a straight cache, bit by bit.

A ring is an ordinary table in which several logical pages are one physical page (onecat_jax/state/drafts.py), so old tokens
are overwritten by newer ones. Not covered: values (test_attention_windows.py).
"""

import jax.numpy as jnp
import numpy as np
import pytest
from attention_oracle import CPU, PLAIN, TYPES, Batch, bits, run, write

from onecat_jax.state.drafts import DraftWindow
from onecat_jax.state.pages import PagedKV

PAGE, WINDOW, BLOCK, MAX_LEN = 16, 40, 8, 640
RING = DraftWindow.ring_pages(WINDOW, MAX_LEN, BLOCK, PAGE)
SLOTS, KV_HEADS, DIM = 5, 2, 32
BOTH = pytest.mark.parametrize("policy", [CPU, PLAIN], ids=["handler", "plain"])


def empty(table: np.ndarray, pages: int, layer: int, cache: str) -> Batch:
    """A cache of two layers full of NaN, without new rows."""
    k_pages, v_pages = (
        np.full((2 * pages, PAGE, KV_HEADS, DIM), np.nan, TYPES[cache]) for _ in "kv"
    )
    none = np.zeros(len(table), np.int32)
    return Batch(none, k_pages, v_pages, table, none, none, [], [], layer * pages)


def ring(slots: list[int], layer: int, cache: str = "float32") -> Batch:
    pages = SLOTS * RING
    nothing = jnp.zeros((2 * pages, PAGE, KV_HEADS, DIM))
    window = DraftWindow(PagedKV(nothing, nothing, pages), RING)
    return empty(np.asarray(window.table(jnp.array(slots), MAX_LEN)), pages, layer, cache)


def straight(batch: int, cache: str = "float32") -> Batch:
    pages = MAX_LEN // PAGE
    return empty(
        np.arange(batch * pages, dtype=np.int32).reshape(batch, -1), batch * pages, 0, cache
    )


class Both:
    """A ring and a straight cache that get the same calls; what is attended must have the same bits."""

    def __init__(self, policy, cache: str = "float32"):
        self.policy = policy
        self.caches = [ring([3, 1, 4], 1, cache), straight(3, cache)]
        self.rng = np.random.default_rng(0)

    def normal(self, rows: int, heads: int) -> np.ndarray:
        return self.rng.standard_normal((3, rows, heads, DIM)).astype(np.float32)

    def at(self, cache: Batch, start, count) -> Batch:
        where = {"start": np.array(start, np.int32), "count": np.array(count, np.int32)}
        return Batch(**{**vars(cache), **where})

    def write(self, start, count, rows: int) -> None:
        k, v = self.normal(rows, KV_HEADS), self.normal(rows, KV_HEADS)
        for i, cache in enumerate(self.caches):
            keys, values = write(self.at(cache, start, count), k, v, self.policy)
            self.caches[i] = Batch(**{**vars(cache), "k_pages": keys, "v_pages": values})

    def attend(self, start, count, rows: int, causal: bool) -> None:
        q = self.normal(rows, 2 * KV_HEADS)
        calls = [Batch(**{**vars(self.at(c, start, count)), "q": q}) for c in self.caches]
        ours, want = (run(x, self.policy, window=WINDOW, causal=causal) for x in calls)
        assert np.isfinite(want).all()
        assert want[0, : count[0]].any()
        assert np.array_equal(bits(ours), bits(want))


@BOTH
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "whole"])
def test_draft_blocks_over_committed_context_equal_a_straight_cache(policy, causal):
    """Each round writes a block beyond the context, attends, and overwrites its first rows by what is committed."""
    both, rng = Both(policy), np.random.default_rng(1)
    start = np.array([0, 7, 30])
    both.write([0, 0, 0], start + 1, 32)
    start += 1
    for _ in range(25):
        both.write(start, [BLOCK] * 3, BLOCK)
        both.attend(start, [BLOCK] * 3, BLOCK, causal)
        accepted = rng.integers(1, BLOCK + 1, 3)
        both.write(start, accepted, BLOCK)
        start += accepted
    assert start.min() > RING * PAGE  # every ring went round


@BOTH
@pytest.mark.parametrize("cache", ["float16", "float8_e4m3fn"])
def test_narrow_caches(cache, policy):
    both = Both(policy, cache)
    for start in range(0, 200, 20):
        both.write([start] * 3, [20] * 3, 20)
        both.attend([start] * 3, [20] * 3, 20, causal=True)


@BOTH
def test_a_whole_ring_written_at_once_equals_a_straight_cache(policy):
    """From any place of a page; the first and the last logical page are then one physical page."""
    both, tokens = Both(policy), RING * PAGE
    both.write([0, 0, 0], [5, 64, 79], 80)
    start = np.array([5, 64, 79])
    for _ in range(3):
        both.write(start, [tokens, tokens - 1, tokens], tokens)
        start += [tokens, tokens - 1, tokens]
        both.attend(start - BLOCK, [BLOCK] * 3, BLOCK, causal=True)


@BOTH
@pytest.mark.parametrize("rows", [16, RING * PAGE])
def test_each_token_lands_in_its_place_of_its_own_ring_and_nothing_else_changes(rows, policy):
    slots, start = [3, 1, 4], np.array([0, 133, 509])
    cache = ring(slots, layer=1)
    count = np.array([rows, rows - 3, rows])
    x = Batch(**{**vars(cache), "start": start.astype(np.int32), "count": count.astype(np.int32)})
    k, v = (
        np.random.default_rng(i).standard_normal((3, rows, KV_HEADS, DIM)).astype(np.float32)
        for i in range(2)
    )
    want = [cache.k_pages.copy(), cache.v_pages.copy()]
    for flat, new in zip(want, (k, v), strict=True):
        tokens = flat[SLOTS * RING :].reshape(SLOTS, RING * PAGE, KV_HEADS, DIM)  # of layer 1
        for b, slot in enumerate(slots):
            tokens[slot, (start[b] + np.arange(count[b])) % (RING * PAGE)] = new[b, : count[b]]
    for found, expected in zip(write(x, k, v, policy), want, strict=True):
        assert np.array_equal(bits(found), bits(expected))
