"""Attention over the paged cache against float64, on the device at hand: few rows (decode, verify) and many (prefill)."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from onecat_jax.cli.environment import Row
from onecat_jax.custom_calls.paged_attention import (
    AttentionDescriptor,
    AttentionRows,
    attend,
    plan,
)
from onecat_jax.custom_calls.paged_attention.specs import CACHES, SPECS, AttentionSpec
from onecat_jax.custom_calls.rows import LiveRows

LENGTHS = (700, 93)  # tokens of the two sequences, the new ones included
PREFILL_ROWS = 80
PAGE = 16
BENCHED = tuple(spec for spec in SPECS if "bench" in spec.tags)
BOUND = 2e-3  # of the largest result: keys, values and weights are taken as float16
ADVICE = (
    "run with backend='plain' and report this with the output of `onecat check --self-test --json`"
)


def attention_rows() -> Iterator[Row]:
    """One row per type of cache, all shapes with the first: the largest error over the largest result, and the route."""
    for cache in CACHES:
        yield _tested(cache)


def _tested(cache: str) -> Row:
    name, worst, bad, routes = f"self-test attention {cache}", 0.0, "", set()
    dtype = jnp.float16 if jax.default_backend() == "gpu" else jnp.float32
    for spec in SPECS if cache == CACHES[0] else BENCHED:
        for rows in (1, spec.rows, PREFILL_ROWS):
            routes.add(_route(spec, rows, dtype, cache))
            error = _error(spec, rows, dtype, cache)
            worst = max(worst, error if np.isfinite(error) else float("inf"))
            if not error < BOUND:
                bad = bad or f"{spec.name} with {rows} rows is off by {error:.1e}"
    taken = ", ".join(sorted(routes))
    if bad:
        return Row(name, "fail", f"{taken}: {bad}", ADVICE)
    return Row(name, "ok", f"{taken}: error at most {worst:.1e}")


def _route(spec: AttentionSpec, rows: int, dtype: jnp.dtype, cache: str) -> str:
    descriptor = AttentionDescriptor(rows, *spec.heads, spec.dim, PAGE, dtype, jnp.dtype(cache))
    return plan("attention", descriptor).name


def _error(spec: AttentionSpec, rows: int, dtype: jnp.dtype, cache: str) -> float:
    """Of `rows` new rows at the ends of two sequences whose pages lie in a random order."""
    rng = np.random.default_rng(rows)
    heads, kv_heads = spec.heads
    pages = [-(-length // PAGE) for length in LENGTHS]
    ids = rng.permutation(sum(pages)).astype(np.int32)
    table = np.zeros((len(pages), max(pages)), np.int32)
    for b, first in enumerate(np.cumsum([0, *pages[:-1]])):
        table[b, : pages[b]] = ids[first : first + pages[b]]
    shape = (len(ids), PAGE, kv_heads, spec.dim)
    k, v = (jnp.asarray(rng.standard_normal(shape), jnp.dtype(cache)) for _ in range(2))
    q = jnp.asarray(rng.standard_normal((len(pages), rows, heads, spec.dim)), dtype)
    count = np.full(len(pages), rows, np.int32)
    start = np.asarray(LENGTHS, np.int32) - count
    where = AttentionRows(
        jnp.asarray(table), jnp.asarray(start), jnp.asarray(count), LiveRows.of(jnp.asarray(count))
    )
    scale = spec.dim**-0.5
    y = attend(q, k, v, where, 0, scale=scale, window=spec.window, causal=spec.causal)
    found, want = np.asarray(y, np.float64), np.empty(q.shape)
    for b, length in enumerate(LENGTHS):
        keys, values = (
            np.asarray(a, np.float64)[table[b]].reshape(-1, kv_heads, spec.dim)[:length]
            for a in (k, v)
        )
        new = np.asarray(q[b], np.float64) * scale
        want[b] = _exact(new, keys, values, int(start[b]), spec)
    return float(np.max(np.abs(found - want)) / np.max(np.abs(want)))


def _exact(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, start: int, spec: AttentionSpec
) -> np.ndarray:
    """q [T, H, D] over k and v [K, J, D] -> [T, H, D]."""
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(a, group, axis=1) for a in (k, v))
    logits = np.einsum("thd,khd->htk", q, k)
    back = start + np.arange(len(q))[:, None] - np.arange(len(k))
    seen = np.full(back.shape, True)
    if spec.causal:
        seen &= back >= 0
    if spec.window is not None:
        seen &= back < spec.window
    weights = np.exp(logits - logits.max(-1, keepdims=True)) * seen
    return np.einsum("htk,khd->thd", weights / weights.sum(-1, keepdims=True), v)
