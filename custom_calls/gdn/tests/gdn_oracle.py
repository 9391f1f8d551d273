"""The gated delta rule in float64, one token after another, and inputs meant to break fast forms.

Written from the recurrence alone (no chunks, no cumulative sums), so that it shares nothing with
the forms it judges:

    S <- exp(g_t) S;   u = beta_t (v_t - k_t^T S);   S <- S + k_t u^T;   o_t = q_t^T S

Layout is that of one sequence: q, k [T, Hk, Dk] already normalised (and q scaled), v [T, Hv, Dv],
g and beta [T, Hv], state [Hv, Dk, Dv]. Value head h reads key head h // (Hv / Hk).
The engine keeps the state the other way round, [Hv, Dv, Dk]: swap the last two axes.

What float32 can reach, measured over KINDS and LENGTHS as `relative_errors`: 1e-6 in chunks of 64;
3e-6 step by step, but 2e-5 after 1000 steps of nearly equal keys and almost no decay, where the
roundings of 1000 rank-one updates along one direction pile up.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

LENGTHS = (1, 63, 64, 65, 1000)
GRID = 64


@dataclass(frozen=True)
class GdnInputs:
    """One sequence; float32 arrays, so that judge and judged start from the same numbers."""

    q: np.ndarray  # [T, Hk, Dk] unit length times Dk**-0.5
    k: np.ndarray  # [T, Hk, Dk] unit length
    v: np.ndarray  # [T, Hv, Dv]
    g: np.ndarray  # [T, Hv] log decay, <= 0
    beta: np.ndarray  # [T, Hv] in 0..1
    state: np.ndarray  # [Hv, Dk, Dv] before the first token


def gdn_steps(x: GdnInputs) -> tuple[np.ndarray, np.ndarray]:
    """Outputs [T, Hv, Dv] and the final state [Hv, Dk, Dv], float64."""
    repeat = x.v.shape[1] // x.k.shape[1]
    q = np.repeat(x.q.astype(np.float64), repeat, axis=1)  # [T, Hv, Dk]
    k = np.repeat(x.k.astype(np.float64), repeat, axis=1)  # [T, Hv, Dk]
    v, beta = x.v.astype(np.float64), x.beta.astype(np.float64)
    decay = np.exp(x.g.astype(np.float64))
    state = x.state.astype(np.float64)
    out = np.empty(v.shape)
    for t in range(len(v)):
        state = decay[t, :, None, None] * state
        seen = np.einsum("hk,hkv->hv", k[t], state)
        update = beta[t, :, None] * (v[t] - seen)
        state = state + k[t, :, :, None] * update[:, None, :]
        out[t] = np.einsum("hk,hkv->hv", q[t], state)
    return out, state


def split(x: GdnInputs, at: int, state: np.ndarray) -> tuple[GdnInputs, GdnInputs]:
    """The sequence cut before token `at`; the second part starts from `state`."""
    first = GdnInputs(x.q[:at], x.k[:at], x.v[:at], x.g[:at], x.beta[:at], x.state)
    second = GdnInputs(x.q[at:], x.k[at:], x.v[at:], x.g[at:], x.beta[at:], state)
    return first, second


def relative_errors(x: GdnInputs, out: np.ndarray, state: np.ndarray) -> tuple[float, float]:
    """Largest error of outputs and of the final state, each over the largest value it can have.

    The state is measured against the larger of its start and its end: a state that decayed to
    nothing leaves nothing to be relative to.
    """
    want_out, want_state = gdn_steps(x)
    size = max(np.abs(x.state).max(), np.abs(want_state).max())
    out_error = np.abs(out - want_out).max() / np.abs(want_out).max()
    return float(out_error), float(np.abs(state - want_state).max() / size)


def grid_splits(length: int) -> list[int]:
    """Every place inside the sequence where a chunk may end: multiples of 64."""
    return list(range(GRID, length, GRID))


def random_inputs(
    rng: np.random.Generator, length: int, heads: tuple[int, int], dims: tuple[int, int]
) -> GdnInputs:
    """Ordinary values: decays of all speeds, beta around one half, a state of unit size.

    `heads` is (Hk, Hv), `dims` is (Dk, Dv).
    """
    (key_heads, value_heads), (key_dim, value_dim) = heads, dims
    q, k = (_unit(rng.standard_normal((length, key_heads, key_dim))) for _ in range(2))
    return GdnInputs(
        q=_f32(q * key_dim**-0.5),
        k=_f32(k),
        v=_f32(rng.standard_normal((length, value_heads, value_dim))),
        g=_f32(-np.exp(rng.uniform(-6.0, 1.0, (length, value_heads)))),
        beta=_f32(1.0 / (1.0 + np.exp(-1.5 * rng.standard_normal((length, value_heads))))),
        state=_f32(rng.standard_normal((value_heads, key_dim, value_dim))),
    )


def _unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def _f32(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32)


def _constant_decay(log_decay: float) -> Callable[[np.random.Generator, GdnInputs], GdnInputs]:
    def change(rng: np.random.Generator, x: GdnInputs) -> GdnInputs:
        return _with(x, g=np.full_like(x.g, log_decay))

    return change


def _constant_beta(value: float) -> Callable[[np.random.Generator, GdnInputs], GdnInputs]:
    def change(rng: np.random.Generator, x: GdnInputs) -> GdnInputs:
        return _with(x, beta=np.full_like(x.beta, value))

    return change


def _mixed_decay(rng: np.random.Generator, x: GdnInputs) -> GdnInputs:
    """Neighbouring tokens that keep all and forget all: cumulative sums reach thousands.

    A chunk form that subtracts two float32 cumulative sums loses about 2e-4 here, relative to the
    largest value; sums over the stretch between the two tokens don't.
    """
    return _with(x, g=_f32(rng.choice([-1e-6, -0.05, -50.0, -500.0], x.g.shape)))


def _rare_reset(rng: np.random.Generator, x: GdnInputs) -> GdnInputs:
    """Near-perfect memory, wiped about once in 40 tokens: small sums beside a huge one."""
    reset = rng.random(x.g.shape) < 0.025
    return _with(x, g=np.where(reset, np.float32(-500.0), np.float32(-1e-6)))


def _switched_beta(rng: np.random.Generator, x: GdnInputs) -> GdnInputs:
    return _with(x, beta=rng.integers(0, 2, x.beta.shape).astype(np.float32))


def _equal_keys(rng: np.random.Generator, x: GdnInputs) -> GdnInputs:
    """All keys of a head alike up to 1e-3, beta and decay near 1: the worst triangular system."""
    noise = 1e-3 * rng.standard_normal(x.k.shape) * x.k.shape[-1] ** -0.5
    keys = _unit(x.k[:1].astype(np.float64) + noise)
    near_one = np.full_like(x.beta, 0.999)
    return _with(x, k=_f32(keys), beta=near_one, g=np.full_like(x.g, -1e-4))


def _opposite_keys(rng: np.random.Generator, x: GdnInputs) -> GdnInputs:
    """Keys alike but for alternating sign: the entries of the triangular system alternate too."""
    same = _equal_keys(rng, x)
    sign = np.where(np.arange(len(x.k)) % 2, -1.0, 1.0).astype(np.float32)
    return _with(same, k=same.k * sign[:, None, None])


def _zero_state(rng: np.random.Generator, x: GdnInputs) -> GdnInputs:
    return _with(x, state=np.zeros_like(x.state))


def _with(x: GdnInputs, **changes: np.ndarray) -> GdnInputs:
    return GdnInputs(**(vars(x) | changes))


KINDS: dict[str, Callable[[np.random.Generator, GdnInputs], GdnInputs]] = {
    "random": lambda rng, x: x,
    "zero_state": _zero_state,
    "decay_none": _constant_decay(0.0),
    "decay_1e-6": _constant_decay(-1e-6),
    "decay_50": _constant_decay(-50.0),
    "decay_500": _constant_decay(-500.0),
    "decay_mixed": _mixed_decay,
    "decay_rare_reset": _rare_reset,
    "beta_0": _constant_beta(0.0),
    "beta_1": _constant_beta(1.0),
    "beta_switched": _switched_beta,
    "equal_keys": _equal_keys,
    "opposite_keys": _opposite_keys,
}


def inputs(
    kind: str,
    length: int,
    heads: tuple[int, int] = (2, 6),
    dims: tuple[int, int] = (128, 128),
    seed: int = 0,
) -> GdnInputs:
    """Inputs of one kind (a key of KINDS); the same call gives the same numbers."""
    words = [seed, length, *heads, *dims, sorted(KINDS).index(kind)]
    rng = np.random.Generator(np.random.PCG64(words))
    return KINDS[kind](rng, random_inputs(rng, length, heads, dims))


def all_inputs(lengths: tuple[int, ...] = LENGTHS) -> Iterator[tuple[str, int]]:
    """(kind, length) of the whole grid, for parametrising tests."""
    for kind in KINDS:
        for length in lengths:
            yield kind, length
