"""Pure JAX gated delta rule: the oracle of the handlers, and the last route.

Equations (per value head, state S [Dv, Dk], Gated DeltaNet, arXiv 2412.06464, as used by Qwen3.5):

    S <- exp(g) S;  u = beta (v - S k);  S <- S + u k^T;  o = S q

The key axis of the state is the inner one, so that both reads are row products.

Keys are L2-normalised and queries are also scaled by the caller. Everything runs in the dtype of the state (float32; float64
in tests). Rows that must not change the state carry g = 0 and beta = 0.

Axes: B batch rows, T tokens, Hk key heads, R value heads per key head (Hv = Hk * R), Dk, Dv, C = 64 chunk length, N chunks.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

CHUNK = 64
SLOW_DECAY = -0.5  # log decay above which the state keeps all of itself and loses a small part
_BASE = 16  # diagonal blocks of the triangular inverse that are solved row by row


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GDNInputs:
    """Per-token inputs of the recurrence. Value head h reads key head h // R."""

    q: Array  # [B, T, Hk, Dk] normalised and scaled
    k: Array  # [B, T, Hk, Dk] normalised
    v: Array  # [B, T, Hv, Dv]
    g: Array  # [B, T, Hv] log decay, <= 0
    beta: Array  # [B, T, Hv] write strength in [0, 1]


def _einsum(spec: str, *operands: Array) -> Array:
    return jnp.einsum(spec, *operands, precision=lax.Precision.HIGHEST)


def _grouped(x: Array, heads: int) -> Array:
    """[B, T, Hv, ...] -> [B, T, Hk, R, ...]."""
    return x.reshape((*x.shape[:2], heads, x.shape[2] // heads, *x.shape[3:]))


def _row(state: Array, q: Array, k: Array, v: Array, g: Array, beta: Array) -> tuple[Array, Array]:
    """One token. state [B, Hk, R, Dv, Dk]; q, k [B, Hk, Dk]; v [B, Hk, R, Dv]; g, beta [B, Hk, R].

    Reads the state once for both products: o = exp(g) S q + (q.k) u is S q after the update.
    """
    decay = jnp.exp(g)[..., None]
    reads = _einsum("bhrvk,bhck->bhrcv", state, jnp.stack([k, q], axis=2))
    u = beta[..., None] * (v - decay * reads[..., 0, :])
    # kept + rest = decay. Rounding exp(g) itself, when it is near one, would shift every later state by the same relative
    # error, a thousand times over a thousand tokens.
    slow = (g > SLOW_DECAY)[..., None, None]
    kept = slow.astype(state.dtype)
    rest = jnp.where(slow, jnp.expm1(g)[..., None, None], decay[..., None])
    state = kept * state + (rest * state + u[..., None] * k[:, :, None, None, :])
    q_dot_k = jnp.sum(q * k, axis=-1)[:, :, None, None]
    return state, decay * reads[..., 1, :] + q_dot_k * u


def block(x: GDNInputs, state: Array) -> tuple[Array, Array]:
    """Short sequences (1 to 16 rows), one token after the other.

    Args:
      x: inputs with T rows.
      state: [B, Hv, Dv, Dk].

    Returns:
      outputs [B, T, Hv, Dv] and the state after the last row; each row's bits are those of `step`.
    """
    batch, rows, heads, dk = x.k.shape
    value_heads, dv = x.v.shape[2:]
    grouped = state.reshape(batch, heads, value_heads // heads, dv, dk)
    outs = []
    for t in range(rows):
        v, g, beta = (_grouped(a, heads)[:, t] for a in (x.v, x.g, x.beta))
        grouped, out = _row(grouped, x.q[:, t], x.k[:, t], v, g, beta)
        outs.append(out.reshape(batch, value_heads, dv))
    return jnp.stack(outs, axis=1), grouped.reshape(state.shape)


def step(x: GDNInputs, state: Array) -> tuple[Array, Array]:
    """One token per request: `block` with T = 1."""
    return block(x, state)


def _segment_sums(g: Array) -> Array:
    """sums[..., i, j] = g[j+1] + ... + g[i] for j <= i, else -inf. g [..., C].

    Every sum adds only its own terms (a product with a triangle of ones): differences of a running sum would lose the
    small decays that follow a very strong one.
    """
    n = g.shape[-1]
    tri = jnp.tril(jnp.ones((n, n), g.dtype))
    below = jnp.tril(jnp.ones((n, n), bool), -1)
    after = jnp.where(below, g[..., :, None], 0)  # [..., l, j], zero unless l > j
    sums = _einsum("il,...lj->...ij", tri, after)
    return jnp.where(tri > 0, sums, -jnp.inf)


def _substitute(a: Array) -> Array:
    """(I + a)^-1 of strictly lower triangular a [..., n, n], row after row."""
    eye = jnp.eye(a.shape[-1], dtype=a.dtype)

    def row(i: Array, solved: Array) -> Array:
        left = lax.dynamic_index_in_dim(a, i, axis=a.ndim - 2, keepdims=False)  # [..., n]
        new = lax.dynamic_index_in_dim(eye, i, keepdims=False) - _einsum(
            "...l,...ln->...n", left, solved
        )
        return lax.dynamic_update_index_in_dim(solved, new, i, solved.ndim - 2)

    return lax.fori_loop(0, a.shape[-1], row, jnp.zeros_like(a))


def _unit_lower_inverse(a: Array) -> Array:
    """(I + a)^-1 of strictly lower triangular a [..., n, n], n = 16 * 2^m: 16 x 16 blocks row by row, then merged in pairs."""
    n = a.shape[-1]
    if n == _BASE:
        return _substitute(a)
    h = n // 2
    top, low = _unit_lower_inverse(jnp.stack([a[..., :h, :h], a[..., h:, h:]]))
    corner = -_einsum("...ij,...jk,...kl->...il", low, a[..., h:, :h], top)
    upper = jnp.concatenate([top, jnp.zeros_like(corner)], axis=-1)
    return jnp.concatenate([upper, jnp.concatenate([corner, low], axis=-1)], axis=-2)


def _pad_to_chunks(x: GDNInputs) -> GDNInputs:
    pad = -x.k.shape[1] % CHUNK
    return jax.tree.map(lambda a: jnp.pad(a, [(0, 0), (0, pad)] + [(0, 0)] * (a.ndim - 2)), x)


def chunked(x: GDNInputs, state: Array) -> tuple[Array, Array]:
    """Long sequences: chunks of 64 tokens counted from the first row, the state carried between them.

    Args:
      x: inputs with any T; split a sequence on multiples of 64 to get the same chunks.
      state: [B, Hv, Dv, Dk].

    Returns:
      outputs [B, T, Hv, Dv] and the state after row T.
    """
    batch, rows, heads, dk = x.k.shape
    value_heads, dv = x.v.shape[2:]
    x = _pad_to_chunks(x)
    # [N, B, Hk, (R,) C, ...]: chunks lead for the scan, tokens sit beside the features for the products.
    q, k = (a.reshape(batch, -1, CHUNK, heads, dk).transpose(1, 0, 3, 2, 4) for a in (x.q, x.k))
    v = x.v.reshape(batch, -1, CHUNK, heads, value_heads // heads, dv).transpose(1, 0, 3, 4, 2, 5)
    g, beta = (
        a.reshape(batch, -1, CHUNK, heads, value_heads // heads).transpose(1, 0, 3, 4, 2)
        for a in (x.g, x.beta)
    )
    decay = jnp.exp(_segment_sums(g))  # [N, B, Hk, R, C, C]
    from_start = jnp.exp(jnp.cumsum(g, axis=-1))
    keys = _einsum("nbhik,nbhjk->nbhij", k, k)[:, :, :, None]
    strict = jnp.tril(jnp.ones((CHUNK, CHUNK), bool), -1)
    inverse = _unit_lower_inverse(jnp.where(strict, beta[..., None] * keys * decay, 0))
    mixed = _einsum("nbhik,nbhjk->nbhij", q, k)[:, :, :, None] * decay

    def one_chunk(carry: Array, c: tuple[Array, ...]) -> tuple[Array, Array]:
        q, k, v, beta, decay, from_start, inverse, mixed = c
        start = from_start[..., None]
        u = beta[..., None] * (v - start * _einsum("bhik,bhrvk->bhriv", k, carry))
        u = _einsum("bhrij,bhrjv->bhriv", inverse, u)
        out = start * _einsum("bhik,bhrvk->bhriv", q, carry) + _einsum(
            "bhrij,bhrjv->bhriv", mixed, u
        )
        kept = decay[..., -1, :, None] * u  # decayed to the end of the chunk
        carry = start[..., -1:, :] * carry + _einsum("bhriv,bhik->bhrvk", kept, k)
        return carry, out

    grouped = state.reshape(batch, heads, value_heads // heads, dv, dk)
    grouped, out = lax.scan(one_chunk, grouped, (q, k, v, beta, decay, from_start, inverse, mixed))
    out = out.transpose(1, 0, 4, 2, 3, 5).reshape(batch, -1, value_heads, dv)[:, :rows]
    return out, grouped.reshape(state.shape)


def causal_conv(x: Array, window: Array, weight: Array, count: Array) -> tuple[Array, Array]:
    """Depthwise causal convolution over time, then SiLU; taps are added oldest first in every form.

    Args:
      x: [B, T, C] new rows.
      window: [B, W-1, C] the rows before them, zeros before the start of a sequence.
      weight: [W, C], the last tap meets the current row.
      count: [B] rows of x that are real; the rest is padding.

    Returns:
      [B, T, C] in float32 and the window [B, W-1, C] after `count` rows, in window's dtype.
    """
    rows, width = x.shape[1], weight.shape[0]
    joined = jnp.concatenate([window, x.astype(window.dtype)], axis=1)  # [B, W-1+T, C]
    taps = weight.astype(jnp.float32)
    y = sum(joined[:, j : j + rows].astype(jnp.float32) * taps[j] for j in range(width))
    keep = count[:, None] + jnp.arange(width - 1)  # [B, W-1]
    return jax.nn.silu(y), jnp.take_along_axis(joined, keep[..., None], axis=1)
