"""Random rounds of verified rows, and how to verify, commit and step through them."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from gdn_rows_cases import CPU, call
from gdn_rows_oracle import Geometry, Weights
from jax import lax

from onecat_jax.custom_calls import gdn
from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import Layer
from onecat_jax.custom_calls.rows import LiveRows


@dataclass(frozen=True)
class Round:
    """Rows of P layers of which the stack's L layers, from `first_layer` on, are replayed. Arrays are numpy's."""

    qkv: np.ndarray  # [P, B, Q, C] float32, not yet rounded to the window's type
    gates: np.ndarray  # [P, B, Q, 2 * Hv]
    states: np.ndarray  # [P * S, Hv, Dv, Dk]
    windows: np.ndarray  # [P * S, W-1, C]
    slots: np.ndarray  # [B] inside a layer
    start: np.ndarray  # [B]
    count: np.ndarray  # [B] accepted rows
    conv: np.ndarray  # [L, W, C]
    a_log: np.ndarray  # [L, Hv]
    dt_bias: np.ndarray  # [L, Hv]
    first_layer: int
    slots_per_layer: int

    @property
    def kept(self) -> tuple[np.ndarray, np.ndarray]:
        return self.qkv.astype(self.windows.dtype), self.gates

    @property
    def weights(self) -> tuple[np.ndarray, ...]:
        return self.conv, self.a_log, self.dt_bias

    def of_layer(self, index: int) -> Weights:
        return Weights(self.conv[index], self.a_log[index], self.dt_bias[index])

    def flat(self, index: int) -> np.ndarray:
        return (self.first_layer + index) * self.slots_per_layer + self.slots


def random_round(
    g: Geometry,
    count: list[int],
    width: int,
    *,
    window_dtype: str = "float32",
    first_layer: int = 1,
) -> Round:
    """Every third row is fresh. All slots but those of the other rows hold NaN, and so do kept rows beyond the count."""
    rng = np.random.default_rng([width, *count])
    f32 = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    batch, stack = len(count), g.layers - first_layer
    slots = rng.permutation(g.slots - 1)[:batch].astype(np.int32) + 1
    start = np.where(np.arange(batch) % 3 == 1, 0, rng.integers(1, 1000, batch)).astype(np.int32)
    states = f32(g.layers, g.slots, g.value_heads, g.value_dim, g.key_dim)
    windows = f32(g.layers, g.slots, g.width - 1, g.channels)
    used = np.zeros(g.slots, bool)
    used[slots[start > 0]] = True
    states[:, ~used], windows[:, ~used] = np.nan, np.nan
    qkv, gates = (
        f32(g.layers, batch, width, g.channels),
        3 * f32(g.layers, batch, width, 2 * g.value_heads),
    )
    beyond = np.arange(width) >= np.array(count)[:, None]
    qkv[:, beyond], gates[:, beyond] = np.nan, np.nan
    return Round(
        qkv, gates, states.reshape(-1, *states.shape[2:]),
        windows.reshape(-1, *windows.shape[2:]).astype(window_dtype), slots, start, np.array(count, np.int32),
        conv=f32(stack, g.width, g.channels),
        a_log=rng.uniform(-4.0, 2.0, (stack, g.value_heads)).astype(np.float32),
        dt_bias=f32(stack, g.value_heads),
        first_layer=first_layer, slots_per_layer=g.slots,
    )  # fmt: skip


def rows_of(slots, start, count) -> gdn.GDNRows:
    return gdn.GDNRows(slots, start, count, LiveRows.of(count))


def commit_call(
    qkv, gates, states, windows, slots, start, count, weights, first, per_layer, policy
):
    """`gdn.commit` over bare arrays."""
    return gdn.commit(
        gdn.KeptRows(qkv, gates), states, windows, rows_of(slots, start, count), gdn.GDNWeights(*weights),
        first_layer=first, slots=per_layer, policy=policy,
    )  # fmt: skip


def verify_call(qkv, gates, states, windows, slots, start, count, weights, layer, policy):
    """`gdn.verify` over bare arrays."""
    rows = rows_of(slots, start, count)
    weights = gdn.GDNWeights(*weights)
    return gdn.verify(qkv, gates, states, windows, rows, weights, layer, policy=policy)


_COMMIT = jax.jit(commit_call, static_argnames=("first", "per_layer", "policy"))
_VERIFY = jax.jit(verify_call, static_argnames=("policy",))
_RECUR = jax.jit(call, static_argnames=("policy",))


def commit(x: Round, policy: Policy = CPU) -> tuple[np.ndarray, np.ndarray]:
    """States and windows."""
    where = (x.slots, x.start, x.count)
    found = _COMMIT(
        *x.kept, x.states, x.windows, *where, x.weights,
        first=x.first_layer, per_layer=x.slots_per_layer, policy=policy,
    )  # fmt: skip
    return tuple(np.asarray(a) for a in found)


def verify(x: Round, index: int, policy: Policy = CPU) -> np.ndarray:
    """Outputs of one layer of the stack."""
    place = x.first_layer + index
    new = (x.qkv[place], x.gates[place])
    where = (x.flat(index), x.start, x.count)
    layer = Layer(jnp.int32(index))
    return np.asarray(_VERIFY(*new, x.states, x.windows, *where, x.weights, layer, policy=policy))


def recur(x: Round, index: int, policy: Policy = CPU):
    """Outputs, states and windows of `gdn.recur` on one layer of the stack."""
    place = x.first_layer + index
    new = (x.qkv[place], x.gates[place])
    where = (x.flat(index), x.start, x.count)
    layer = Layer(jnp.int32(index))
    found = _RECUR(*new, x.states, x.windows, *where, *x.weights, layer, policy=policy)
    return tuple(np.asarray(a) for a in found)


def one_by_one(x: Round, policy: Policy = CPU) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Outputs per layer, states and windows after `recur` with one row at a time."""
    outs = []
    for index in range(len(x.conv)):
        of_layer = []
        for t in range(x.qkv.shape[2]):
            row = replace(
                x, qkv=x.qkv[:, :, t : t + 1], gates=x.gates[:, :, t : t + 1],
                start=x.start + t, count=(x.count > t).astype(np.int32),
            )  # fmt: skip
            o, states, windows = recur(row, index, policy)
            x = replace(x, states=states, windows=windows)
            of_layer.append(o)
        outs.append(np.concatenate(of_layer, axis=1))
    return outs, x.states, x.windows


def soak(g: Geometry, rounds: int, window_dtype: str, policy: Policy = CPU, dtype: str = "float32"):
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
            o, *caches = call(*new, *caches, flat, start + t, live, *weights, layer, policy)
            outs.append(o)
        return jnp.concatenate(outs, axis=1), caches

    def one_round(i, carry):
        position, agree, replayed, stepped = carry
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), i), 3)
        qkv = jax.random.normal(keys[0], (g.layers, batch, width, g.channels)).astype(dtype)
        gates = 3 * jax.random.normal(keys[1], (g.layers, batch, width, 2 * g.value_heads))
        count = jax.random.randint(keys[2], (batch,), 0, width + 1)
        full = jnp.full(batch, width, jnp.int32)
        for index in range(g.layers):
            flat, layer = index * g.slots + slots, Layer(index)
            new = (qkv[index], gates[index])
            o = verify_call(*new, *replayed, flat, position, full, weights, layer, policy)
            want, stepped = steps(stepped, *new, flat, position, count, layer)
            real = (jnp.arange(width) < count[:, None])[..., None, None]
            agree &= jnp.all(jnp.where(real, o == want, True))
        kept = (qkv.astype(window_dtype), gates)
        replayed = commit_call(
            *kept, *replayed, slots, position, count, weights, 0, g.slots, policy
        )
        return position + count, agree, tuple(replayed), tuple(stepped)

    caches = (jnp.asarray(x.states), jnp.asarray(x.windows))
    start = (jnp.zeros(batch, jnp.int32), jnp.bool_(True), caches, caches)
    return jax.jit(lambda: lax.fori_loop(0, rounds, one_round, start))()
