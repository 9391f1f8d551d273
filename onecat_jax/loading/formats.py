"""Which stored tensors make up one logical tensor, and in which format.

Names and dtypes decide, values never do.

Formats of a linear [N, K]:
  dense: weight BF16, F16 or F32 [N, K]
  nvfp4, ModelOpt: weight U8 [N, K/2], weight_scale F8_E4M3 [N, K/16], and weight_scale_2 F32
    (scalar or [1]), a multiplier
  nvfp4, compressed-tensors: weight_packed and weight_scale alike, and weight_global_scale F32, a
    divisor
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from onecat_jax.custom_calls.linear.weights import GROUP
from onecat_jax.loading.dtypes import DENSE, FP8
from onecat_jax.loading.safetensors_file import TensorInfo
from onecat_jax.models.spec import TensorSpec

Format = Literal["dense", "nvfp4"]
IGNORED_SUFFIXES = ("input_scale", "input_global_scale", "k_scale", "v_scale", "q_scale")
"""Scales of activations and of a quantised KV cache: weights don't need them."""

_WEIGHT_SUFFIXES = (
    "weight",
    "weight_packed",
    "weight_scale",
    "weight_scale_2",
    "weight_global_scale",
    "weight_scale_inv",
    "weight_shape",
    "weight_zero_point",
    "weight_g_idx",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
)


class Mismatch(Exception):
    """Why stored tensors don't make up what a spec needs.

    Collected by the caller, several to one error.
    """


@dataclass(frozen=True)
class Source:
    """The stored tensors behind one canonical name.

    Attributes:
      weight: stored name of the weight or of its packed codes.
      scale: stored name of the block scales, NVFP4 only.
      global_scale: stored name of the per-tensor scale, NVFP4 only.
      divides: True if the global scale divides (compressed-tensors), False if it multiplies
        (ModelOpt).
    """

    spec: TensorSpec
    format: Format
    weight: str
    scale: str = ""
    global_scale: str = ""
    divides: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """All stored names."""
        return tuple(name for name in (self.weight, self.scale, self.global_scale) if name)


@dataclass(frozen=True)
class Stored:
    """One stored tensor of a module."""

    name: str
    info: TensorInfo

    def __str__(self) -> str:
        return f"{self.name} ({self.info.file.name}, {self.info.dtype} {list(self.info.shape)})"


Parts = Mapping[str, Stored]


def parts_of(
    name: str, spec: TensorSpec, index: Mapping[str, str], tensors: Mapping[str, TensorInfo]
) -> dict[str, Stored]:
    """Stored tensors that belong to a canonical name, by suffix ("weight", "weight_scale", ...)."""
    if spec.kind != "linear":
        found = {"weight": name}
    else:
        module = name.removesuffix(".weight")
        found = {suffix: f"{module}.{suffix}" for suffix in _WEIGHT_SUFFIXES}
    return {
        suffix: Stored(index[full], tensors[index[full]])
        for suffix, full in found.items()
        if full in index
    }


def source(name: str, spec: TensorSpec, parts: Parts) -> Source:
    """Decides the format and checks dtypes and shapes of all parts against the logical shape.

    Raises:
      Mismatch: the parts don't make up the tensor; the text names what was found and what is
        needed.
    """
    if spec.kind != "linear":
        return _dense(name, spec, parts)
    _refuse_unimplemented(parts)
    if "weight_packed" in parts:
        return _nvfp4(spec, parts, "weight_packed", "weight_global_scale", divides=True)
    if "weight" in parts and parts["weight"].info.dtype == "U8":
        return _nvfp4(spec, parts, "weight", "weight_scale_2", divides=False)
    return _dense(name, spec, parts)


def _refuse_unimplemented(parts: Parts) -> None:
    for suffix, kind in (("qweight", "AWQ or GPTQ INT4"), ("weight_scale_inv", "block FP8")):
        if suffix in parts:
            raise Mismatch(f"{parts[suffix]} is {kind}, which isn't implemented")
    weight = parts.get("weight_packed") or parts.get("weight")
    if weight is None:
        return
    if weight.info.dtype in FP8:
        raise Mismatch(f"{weight} is FP8, which isn't implemented")
    scale = parts.get("weight_scale")
    if weight.info.dtype == "U8" and scale is not None and scale.info.dtype in ("U8", "F8_E8M0"):
        raise Mismatch(f"{weight} is MXFP4, which isn't implemented")
    if weight.info.dtype in ("I32", "I8"):
        raise Mismatch(f"{weight} is an integer format, which isn't implemented")


def _dense(name: str, spec: TensorSpec, parts: Parts) -> Source:
    if "weight" not in parts:
        raise Mismatch(f"{name} is missing, needed {list(spec.shape)}")
    weight = parts["weight"]
    if weight.info.dtype not in DENSE:
        raise Mismatch(f"{weight} has a wrong dtype, needed {', '.join(DENSE)}")
    if weight.info.shape != spec.shape:
        raise Mismatch(f"{weight} has a wrong shape, needed {list(spec.shape)}")
    rest = [part for suffix, part in parts.items() if suffix != "weight"]
    if rest:
        raise Mismatch(f"{weight} is dense, yet quantisation scales lie beside it: {rest[0]}")
    return Source(spec, "dense", weight.name)


def _nvfp4(spec: TensorSpec, parts: Parts, codes: str, scale: str, *, divides: bool) -> Source:
    n, k = spec.shape
    if k % GROUP:
        raise Mismatch(f"{parts[codes]} is NVFP4, which needs K a multiple of {GROUP}, K is {k}")
    needed = {
        codes: ("U8", ((n, k // 2),)),
        "weight_scale": ("F8_E4M3", ((n, k // GROUP),)),
        scale: ("F32", ((), (1,))),
    }
    for suffix, (dtype, shapes) in needed.items():
        _check_part(parts, codes, suffix, dtype, shapes)
    rest = [part for suffix, part in parts.items() if suffix not in needed]
    if rest:
        raise Mismatch(f"{parts[codes]} is NVFP4, yet {rest[0]} of another format lies beside it")
    names = (parts[codes].name, parts["weight_scale"].name, parts[scale].name)
    return Source(spec, "nvfp4", *names, divides=divides)


def _check_part(
    parts: Parts, codes: str, suffix: str, dtype: str, shapes: tuple[tuple[int, ...], ...]
) -> None:
    wanted = f"{dtype} {' or '.join(str(list(shape)) for shape in shapes)}"
    if suffix not in parts:
        raise Mismatch(f"{parts[codes]} is NVFP4, its {suffix} is missing, needed {wanted}")
    info = parts[suffix].info
    if info.dtype != dtype:
        raise Mismatch(f"{parts[suffix]} has a wrong dtype, needed {wanted}")
    if info.shape not in shapes:
        raise Mismatch(f"{parts[suffix]} has a wrong shape, needed {wanted}")
