"""Attention in float64 numpy, query by query, and random paged caches; shares no code with the package."""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.paged_attention import AttentionRows, attend, write_tokens
from onecat_jax.custom_calls.rows import LiveRows

CPU = Policy("auto", strict=True)
PLAIN = Policy("plain")
TYPES = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    start: int,
    scale: float,
    window: int | None = None,
    causal: bool = True,
) -> np.ndarray:
    """q [T, H, D] at positions from start on, k and v [N, J, D] of positions 0 .. N - 1 -> [T, H, D]."""
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(a.astype(np.float64), group, axis=1) for a in (k, v))
    out = np.zeros(q.shape)
    for t, row in enumerate(q.astype(np.float64)):
        last = start + t + 1 if causal else len(k)
        first = 0 if window is None else max(start + t + 1 - window, 0)
        if last <= first:
            continue
        logits = np.einsum("hd,nhd->hn", row, k[first:last]) * scale
        p = np.exp(logits - logits.max(-1, keepdims=True))
        out[t] = np.einsum("hn,nhd->hd", p / p.sum(-1, keepdims=True), v[first:last])
    return out


@dataclass(frozen=True)
class Batch:
    """A filled cache and new rows, as numpy arrays; `keys[b]` and `values[b]` are what sequence b holds."""

    q: np.ndarray  # [B, T, H, D]
    k_pages: np.ndarray  # [X, S, J, D]
    v_pages: np.ndarray  # [X, S, J, D]
    table: np.ndarray  # [B, P]
    start: np.ndarray  # [B]
    count: np.ndarray  # [B]
    keys: list[np.ndarray]  # [N, J, D]
    values: list[np.ndarray]  # [N, J, D]
    first: int

    def rows(self, order: list[int]) -> "Batch":
        """Some of the rows, over the same cache."""
        arrays = {name: getattr(self, name)[order] for name in ("q", "table", "start", "count")}
        lists = {name: [getattr(self, name)[b] for b in order] for name in ("keys", "values")}
        return replace(self, **arrays, **lists)

    def forgotten(self, window: int, page_id: int) -> "Batch":
        """With NaN at every position that no row of a window sees, and page_id in place of pages that hold nothing else."""
        k_pages, v_pages, table = self.k_pages.copy(), self.v_pages.copy(), self.table.copy()
        size = k_pages.shape[1]
        for b, start in enumerate(self.start):
            at = np.arange(max(int(start) - window + 1, 0))
            for flat in (k_pages, v_pages):
                flat[self.first + table[b, at // size], at % size] = np.nan
            table[b, : len(at) // size] = page_id
        return replace(self, k_pages=k_pages, v_pages=v_pages, table=table)


def random_batch(
    lengths: list[int],
    *,
    count: list[int] | None = None,
    width: int = 1,
    heads: tuple[int, int] = (4, 2),
    dim: int = 64,
    page: int = 16,
    cache: str = "float32",
    dtype: str = "float32",
    spare: int = 3,
    seed: int = 0,
) -> Batch:
    """Sequences of the given lengths (new rows included), pages in mixed order, everything else NaN."""
    rng = np.random.default_rng([seed, *lengths, *heads, dim, page])
    count = [min(width, n) for n in lengths] if count is None else count
    per_row = [-(-n // page) for n in lengths]
    table = np.zeros((len(lengths), max([*per_row, 1]) + spare), np.int32)
    pages, first = sum(per_row) + 4, 5
    numbers = iter(rng.permutation(pages - 1) + 1)
    k_pages, v_pages = (
        np.full((first + pages, page, heads[1], dim), np.nan, TYPES[cache]) for _ in "kv"
    )
    keys, values = [], []
    for b, n in enumerate(lengths):
        table[b] = [next(numbers) if p < per_row[b] else -7 for p in range(table.shape[1])]
        for own, flat in ((keys, k_pages), (values, v_pages)):
            own.append((1.5 * rng.standard_normal((n, *flat.shape[2:]))).astype(TYPES[cache]))
            at = np.arange(n)
            flat[first + table[b, at // page], at % page] = own[b]
    q = (2.0 * rng.standard_normal((len(lengths), width, heads[0], dim))).astype(TYPES[dtype])
    start = np.array(lengths) - count
    return Batch(
        q,
        k_pages,
        v_pages,
        table,
        start.astype(np.int32),
        np.array(count, np.int32),
        keys,
        values,
        first,
    )


def check_rows(
    x: Batch,
    found: np.ndarray,
    window: int | None = None,
    causal: bool = True,
    bound: float = 1e-3,
) -> None:
    """Each row's error is at most `bound` of its norm, for a body that takes keys and values, and weights, as float16."""
    for b, count in enumerate(x.count):
        assert not found[b, count:].any()
        if count == 0:
            continue
        k, v = (a[b].astype(np.float16) for a in (x.keys, x.values))
        scale = x.q.shape[-1] ** -0.5
        want = attention(x.q[b, :count], k, v, int(x.start[b]), scale, window, causal)
        error = np.linalg.norm(found[b, :count] - want, axis=-1)
        assert (error <= bound * np.linalg.norm(want, axis=-1)).all(), (b, error.max())


def repaged(x: Batch, page: int) -> Batch:
    """The same sequences in pages of another size, in ascending order behind each other."""
    per_row = [-(-len(k) // page) for k in x.keys]
    starts = np.cumsum([0, *per_row])
    table = np.full((len(per_row), max(per_row)), -1, np.int32)
    caches = []
    for own in (x.keys, x.values):
        flat = np.full((starts[-1], page, *own[0].shape[1:]), np.nan, own[0].dtype)
        for b, rows in enumerate(own):
            table[b, : per_row[b]] = np.arange(per_row[b]) + starts[b]
            at = np.arange(len(rows))
            flat[table[b, at // page], at % page] = rows
        caches.append(flat)
    return replace(x, k_pages=caches[0], v_pages=caches[1], table=table, first=0)


def rows_of(table, start, count) -> AttentionRows:
    return AttentionRows(table, start, count, LiveRows.of(count))


@partial(jax.jit, static_argnames=("window", "causal", "policy"))
def _attend(q, k, v, table, start, count, first, *, window, causal, policy):
    rows, scale = rows_of(table, start, count), q.shape[-1] ** -0.5
    return attend(q, k, v, rows, first, scale=scale, window=window, causal=causal, policy=policy)


_WRITE = jax.jit(
    lambda k_pages, v_pages, k, v, table, start, count, first, policy: write_tokens(
        k_pages, v_pages, k, v, rows_of(table, start, count), first, policy=policy
    ),
    static_argnames="policy",
)


def run(
    x: Batch, policy: Policy = CPU, *, window: int | None = None, causal: bool = True
) -> np.ndarray:
    where = (jnp.asarray(x.table), jnp.asarray(x.start), jnp.asarray(x.count), jnp.int32(x.first))
    how = {"window": window, "causal": causal, "policy": policy}
    return np.asarray(_attend(jnp.asarray(x.q), x.k_pages, x.v_pages, *where, **how))


def write(
    x: Batch, k: np.ndarray, v: np.ndarray, policy: Policy = CPU
) -> tuple[np.ndarray, np.ndarray]:
    """Both caches after writing k and v [B, T, J, D]."""
    where = (jnp.asarray(x.table), jnp.asarray(x.start), jnp.asarray(x.count), jnp.int32(x.first))
    found = _WRITE(x.k_pages, x.v_pages, jnp.asarray(k), jnp.asarray(v), *where, policy=policy)
    return tuple(np.asarray(a) for a in found)


def bits(x: np.ndarray) -> np.ndarray:
    """The bytes of an array, so that NaN equals NaN."""
    return np.ascontiguousarray(x).view(np.uint8)
