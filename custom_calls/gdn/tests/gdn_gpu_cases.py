"""Batches and rounds as the GPU kernels take them: float16 rows and windows, heads of 128."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from gdn_rollback_cases import Round, random_round, rows_of
from gdn_rows_cases import Batch, random_batch
from gdn_rows_oracle import Geometry

from onecat_jax.custom_calls import gdn
from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.custom_calls.gdn import OutputNorm
from onecat_jax.custom_calls.gdn.specs import SPECS, GDNSpec
from onecat_jax.custom_calls.linear import Layer

TINY = next(s for s in SPECS if s.name == "tiny tp1")


def geometry(spec: GDNSpec = TINY, **how) -> Geometry:
    return Geometry(spec.key_heads, spec.value_heads, 128, 128, **how)


def batch(g: Geometry, count: list[int], width: int, seed: int = 0) -> Batch:
    x = random_batch(g, count, width, window_dtype="float16", seed=seed)
    return replace(x, qkv=x.qkv.astype(np.float16))


def rounds(g: Geometry, count: list[int], width: int, **how) -> Round:
    x = random_round(g, count, width, window_dtype="float16", **how)
    return replace(x, qkv=x.qkv.astype(np.float16))


def part(x: Batch, a: int, b: int, states, windows) -> Batch:
    """Rows a .. b - 1 of all sequences, from the caches that the rows before them left."""
    new = {"qkv": x.qkv[:, a:b], "gates": x.gates[:, a:b], "states": states, "windows": windows}
    return replace(x, **new, start=x.start + a, count=np.clip(x.count - a, 0, b - a))


def same(a, b) -> bool:
    """Bits of all arrays; NaNs equal one another."""
    return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(a, b, strict=True))


def gated(x: Round, z: np.ndarray, norm: OutputNorm, kept: gdn.KeptRows, policy: Policy):
    """`verify_gated` and `recur_gated` of the first layer of the stack: y, kept rows, y, states and windows.

    z [B, Q, Hv * Dv] stands behind the channels.
    """
    place, layer = x.first_layer, Layer(jnp.int32(0))
    projected = jnp.asarray(np.concatenate([x.qkv[place], z], axis=-1))
    gates = jnp.asarray(x.gates[place])
    caches = (jnp.asarray(x.states), jnp.asarray(x.windows))
    weights = gdn.GDNWeights(*map(jnp.asarray, x.weights))
    where = rows_of(*map(jnp.asarray, (x.flat(0), x.start, x.count)))
    assert gdn.takes_gated(projected, *caches, weights, policy)
    verified, kept = gdn.verify_gated(
        projected, gates, *caches, kept, place, where, weights, layer, norm
    )
    stepped = gdn.recur_gated(projected, gates, *caches, where, weights, layer, norm)
    return (*map(np.asarray, (verified, kept.qkv, kept.gates)), *map(np.asarray, stepped))
