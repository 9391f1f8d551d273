"""Random batches for the row form of GDN, and how to run them."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from gdn_rows_oracle import Geometry, Weights

from onecat_jax.custom_calls import gdn
from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.linear import Layer
from onecat_jax.custom_calls.rows import LiveRows

CPU = Policy("auto", strict=True)
PLAIN = Policy("plain")


@dataclass(frozen=True)
class Batch:
    """Operands of one call, as numpy arrays."""

    qkv: np.ndarray  # [B, T, C]
    gates: np.ndarray  # [B, T, 2 * Hv]
    states: np.ndarray  # [X, Hv, Dv, Dk]
    windows: np.ndarray  # [X, W-1, C]
    slots: np.ndarray  # [B] flat
    start: np.ndarray  # [B]
    count: np.ndarray  # [B]
    conv: np.ndarray  # [L, W, C]
    a_log: np.ndarray  # [L, Hv]
    dt_bias: np.ndarray  # [L, Hv]
    layer: int = 1

    @property
    def weights(self) -> Weights:
        return Weights(self.conv[self.layer], self.a_log[self.layer], self.dt_bias[self.layer])

    def row(self, b: int) -> "Batch":
        """Row b alone, with the whole caches."""
        names = ("qkv", "gates", "slots", "start", "count")
        return replace(self, **{name: getattr(self, name)[b : b + 1] for name in names})

    def rows(self, order: list[int]) -> "Batch":
        names = ("qkv", "gates", "slots", "start", "count")
        return replace(self, **{name: getattr(self, name)[order] for name in names})


def random_batch(
    g: Geometry, count: list[int], width: int, *, seed: int = 0, window_dtype: str = "float32"
) -> Batch:
    """Rows with the given counts, slots in mixed order, the second row at position 0 on a slot full of NaN."""
    rng = np.random.default_rng([seed, width, len(count)])
    f32 = lambda *shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    batch, flat = len(count), g.layers * g.slots
    slots = rng.permutation(g.slots - 1)[:batch] + 1 + g.slots  # of layer 1
    start = rng.integers(1, 1000, batch).astype(np.int32)
    states, windows = (
        f32(flat, g.value_heads, g.value_dim, g.key_dim),
        f32(flat, g.width - 1, g.channels),
    )
    windows = windows.astype(window_dtype)
    if batch > 1:
        start[1] = 0
        states[slots[1]], windows[slots[1]] = np.nan, np.nan
    return Batch(
        qkv=f32(batch, width, g.channels).astype(window_dtype).astype(np.float32),
        gates=3.0 * f32(batch, width, 2 * g.value_heads),
        states=states,
        windows=windows,
        slots=slots.astype(np.int32),
        start=start,
        count=np.array(count, np.int32),
        conv=f32(g.layers, g.width, g.channels),
        a_log=rng.uniform(-4.0, 2.0, (g.layers, g.value_heads)).astype(np.float32),
        dt_bias=f32(g.layers, g.value_heads),
    )


def call(qkv, gates, states, windows, slots, start, count, conv, a_log, dt_bias, layer, policy):
    """`gdn.recur` over bare arrays."""
    rows = gdn.GDNRows(slots, start, count, LiveRows.of(count))
    weights = gdn.GDNWeights(conv, a_log, dt_bias)
    return gdn.recur(qkv, gates, states, windows, rows, weights, layer, policy=policy)


_JITTED = jax.jit(call, static_argnames=("policy",))


def run(x: Batch, policy: Policy = CPU, layer: Layer | None = None):
    """o, states and windows as numpy arrays."""
    arrays = [jnp.asarray(a) for a in (x.qkv, x.gates, x.states, x.windows, x.slots, x.start)]
    arrays += [jnp.asarray(a) for a in (x.count, x.conv, x.a_log, x.dt_bias)]
    found = _JITTED(*arrays, layer or Layer(jnp.int32(x.layer)), policy=policy)
    return tuple(np.asarray(a) for a in found)
