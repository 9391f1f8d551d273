"""The linear in plain JAX: the oracle of the handlers and the route that takes everything.

Decoding NVFP4 is exact up to the global scale: an E2M1 code has 2 significant bits, an E4M3 scale 4 and a float32 holds their
product; the product with the global scale rounds once to float32. An E4M3 code of FP8 and a difference of INT4 have 4
significant bits, so INT4 under a 16-bit scale is exact too, and their product with a float32 scale rounds once. Formats: OCP
microscaling E2M1, OCP FP8 E4M3 (no infinity).
"""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import Array, lax

from onecat_jax.custom_calls.linear.packing import nibbles
from onecat_jax.custom_calls.linear.weights import (
    BLOCK,
    FP8,
    GROUP,
    INT4,
    NVFP4,
    Dense,
    DenseTensor,
    FP8Tensor,
    HostMatrix,
    Layer,
    Linear,
    NVFP4Tensor,
    pick,
)

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


def decode_fp8(codes: Array, scales: Array) -> Array:
    """FP8 in checkpoint order -> float32 [..., N, K].

    Args:
      codes: uint8 [..., N, K].
      scales: float32 [..., N] or [..., N, ceil(K / 128)].
    """
    if scales.ndim < codes.ndim:
        return decode_e4m3(codes) * scales[..., None]
    return decode_e4m3(codes) * jnp.repeat(scales, BLOCK, axis=-1)[..., : codes.shape[-1]]


def decode_int4(codes: Array, scales: Array, zeros: Array, group: int) -> Array:
    """INT4, columns in the order of the codes -> float32 [..., N, K].

    Args:
      codes: uint8 [..., N, K / 2].
      scales: a floating dtype, [..., N, K / group].
      zeros: uint8 [..., N, K / group].
    """
    steps = unpack_codes(codes).astype(jnp.int32) - jnp.repeat(zeros, group, axis=-1)
    return steps.astype(jnp.float32) * jnp.repeat(scales.astype(jnp.float32), group, axis=-1)


def weight_matrix(w: Linear, layer: Layer) -> Array:
    """The layer's weight as [N, K]: float32 for packed kinds in layout "rows", the stored dtype for a dense one.

    Columns of INT4 stay in the order of the codes.
    """
    if isinstance(w, Dense):
        return pick(w.weight, layer)
    if w.layout != "rows":
        raise ValueError(
            f"plain JAX reads {type(w).__name__} in layout 'rows', this weight is packed as {w.layout!r}"
        )
    codes, scales = pick(w.codes, layer), pick(w.scales, layer)
    if isinstance(w, NVFP4):
        return decode_nvfp4(codes, scales, pick(w.global_scale, layer))
    if isinstance(w, FP8):
        return decode_fp8(codes, scales)
    return decode_int4(codes, scales, pick(w.zeros, layer), w.group)


def in_code_order(x: Array, w: Linear, layer: Layer) -> Array:
    """x [M, K] with its features in the order of the weight's columns."""
    if not isinstance(w, INT4) or w.order is None:
        return x
    return jnp.take(x, pick(w.order, layer), axis=1)


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
    """x [M, K], features in the order of the weight's columns -> float32 [M, N], everything in float32."""
    return dot(x.astype(jnp.float32), weight_matrix(w, layer).astype(jnp.float32))


def exact_matrix(tensor: HostMatrix) -> np.ndarray:
    """What a host tensor means: float64 [N, K], without any rounding, columns in the order of the input's features."""
    if isinstance(tensor, DenseTensor):
        return tensor.weight.astype(np.float64)
    if isinstance(tensor, NVFP4Tensor):
        values = np.asarray(E2M1)[nibbles(tensor.codes)] * np.float64(tensor.global_scale)
        return values * np.repeat(_e4m3(tensor.scales), GROUP, axis=1)
    if isinstance(tensor, FP8Tensor):
        values, scales = _e4m3(tensor.codes), tensor.row_scales().astype(np.float64)
        if scales.ndim == 1:
            return values * scales[:, None]
        return values * np.repeat(scales, BLOCK, axis=1)[:, : values.shape[1]]
    zeros, scales = tensor.zeros.astype(np.float64), tensor.scales.astype(np.float64)
    steps = nibbles(tensor.codes) - np.repeat(zeros, tensor.group, axis=1)
    values = steps * np.repeat(scales, tensor.group, axis=1)
    return values if tensor.order is None else values[:, np.argsort(tensor.order)]


def _e4m3(bits: np.ndarray) -> np.ndarray:
    return bits.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
