"""The linear in plain JAX: the oracle of the handlers and the route that takes everything.

Decoding is exact: an E2M1 code has 2 significant bits, an E4M3 scale 4 and a float32 holds their product. The product
with the global scale rounds once to float32. Formats: OCP microscaling E2M1, OCP FP8 E4M3 (no infinity).
"""

import jax.numpy as jnp
from jax import Array, lax

from onecat_jax.custom_calls.linear.weights import GROUP, Dense, Layer, Linear, pick

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def decode_e4m3(bits: Array) -> Array:
    """uint8 [...] bits of E4M3 -> float32 [...]."""
    return lax.bitcast_convert_type(bits, jnp.float8_e4m3fn).astype(jnp.float32)


def unpack_codes(codes: Array) -> Array:
    """uint8 [..., K / 2] -> uint8 [..., K], the low nibble first."""
    pairs = jnp.stack([codes & 15, codes >> 4], axis=-1)
    return pairs.reshape(*codes.shape[:-1], codes.shape[-1] * 2)


def decode_nvfp4(codes: Array, scales: Array, global_scale: Array) -> Array:
    """NVFP4 in checkpoint order -> float32 [..., N, K].

    Args:
      codes: uint8 [..., N, K / 2].
      scales: uint8 [..., N, K / 16].
      global_scale: float32 [..., N].
    """
    values = jnp.asarray(E2M1, jnp.float32)[unpack_codes(codes)]
    return values * jnp.repeat(decode_e4m3(scales), GROUP, axis=-1) * global_scale[..., None]


def weight_matrix(w: Linear, layer: Layer) -> Array:
    """The layer's weight as [N, K]: float32 for NVFP4 in layout "rows", the stored dtype for a dense one."""
    if isinstance(w, Dense):
        return pick(w.weight, layer)
    if w.layout != "rows":
        raise ValueError(
            f"plain JAX reads NVFP4 in layout 'rows', this weight is packed as {w.layout!r}"
        )
    return decode_nvfp4(pick(w.codes, layer), pick(w.scales, layer), pick(w.global_scale, layer))


def dot(x: Array, matrix: Array) -> Array:
    """x [M, K] times matrix [N, K] transposed, products summed in float32 -> float32 [M, N]."""
    return lax.dot_general(
        x,
        matrix,
        (((1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


def linear_reference(x: Array, w: Linear, layer: Layer) -> Array:
    """x [M, K] -> float32 [M, N], everything in float32."""
    return dot(x.astype(jnp.float32), weight_matrix(w, layer).astype(jnp.float32))
