"""Convolution, gates and gated delta rule of one sequence in float64 numpy, token by token; shares no code with the package.

The state is [Hv, Dv, Dk], the window [W-1, C], both as they stand before the first token.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Geometry:
    """Heads and sizes of a layer."""

    key_heads: int = 2
    value_heads: int = 4
    key_dim: int = 32
    value_dim: int = 16
    width: int = 4
    layers: int = 3
    slots: int = 5

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True)
class Weights:
    """Of one layer."""

    conv: np.ndarray  # [W, C]
    a_log: np.ndarray  # [Hv]
    dt_bias: np.ndarray  # [Hv]


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1.0 + np.exp(-x))


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


def token(g: Geometry, w: Weights, joined: np.ndarray, gates: np.ndarray, state: np.ndarray):
    """One token: joined [W, C] is the window and the new row. Returns o [Hv, Dv] and the state."""
    y = _silu((joined * w.conv).sum(0))
    keys = g.key_heads * g.key_dim
    q, k = (a.reshape(g.key_heads, g.key_dim) for a in (y[:keys], y[keys : 2 * keys]))
    each = g.value_heads // g.key_heads
    q, k = (np.repeat(_unit(a), each, axis=0) for a in (q, k))
    v = y[2 * keys :].reshape(g.value_heads, g.value_dim)
    b, a = gates[: g.value_heads], gates[g.value_heads :]
    decay = np.exp(-np.exp(w.a_log) * np.logaddexp(0.0, a + w.dt_bias))
    state = decay[:, None, None] * state
    u = (v - np.einsum("hvk,hk->hv", state, k)) / (1.0 + np.exp(-b))[:, None]
    state = state + u[:, :, None] * k[:, None, :]
    return np.einsum("hvk,hk->hv", state, q) * g.key_dim**-0.5, state


def sequence(
    g: Geometry,
    w: Weights,
    qkv: np.ndarray,
    gates: np.ndarray,
    state: np.ndarray,
    window: np.ndarray,
):
    """qkv [T, C], gates [T, 2 * Hv] -> o [T, Hv, Dv], state, window; float64."""
    w = Weights(*(a.astype(np.float64) for a in (w.conv, w.a_log, w.dt_bias)))
    state, window = state.astype(np.float64), window.astype(np.float64)
    out = []
    for row, gate in zip(qkv.astype(np.float64), gates.astype(np.float64), strict=True):
        joined = np.concatenate([window, row[None]])
        o, state = token(g, w, joined, gate, state)
        out.append(o)
        window = joined[1:]
    return np.stack(out), state, window
