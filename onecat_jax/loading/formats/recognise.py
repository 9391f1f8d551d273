"""Which format the stored tensors of a module are in: by their names and dtypes, never by their values."""

from onecat_jax.loading.formats.awq import awq
from onecat_jax.loading.formats.dense import dense
from onecat_jax.loading.formats.fp8 import fp8
from onecat_jax.loading.formats.nvfp4 import nvfp4
from onecat_jax.loading.formats.packed import packed
from onecat_jax.loading.formats.parts import Mismatch, Parts
from onecat_jax.loading.formats.quark import quark
from onecat_jax.loading.formats.source import Source
from onecat_jax.models.spec import TensorSpec

_UNIMPLEMENTED = {"F8_E5M2": "FP8 in E5M2", "I8": "INT8"}
_E8M0 = ("U8", "F8_E8M0")


def source(name: str, spec: TensorSpec, parts: Parts) -> Source:
    """Decides the format and checks dtypes and shapes of all parts against the logical shape.

    Raises:
      Mismatch: the parts don't make up the tensor; the text names what was found and what is needed.
    """
    if spec.kind != "linear":
        return dense(name, spec, parts)
    if "qweight" in parts:
        return awq(spec, parts)
    codes = "weight_packed" if "weight_packed" in parts else "weight"
    dtype = parts[codes].info.dtype if codes in parts else ""
    if dtype in _UNIMPLEMENTED:
        raise Mismatch(f"{parts[codes]} is {_UNIMPLEMENTED[dtype]}, which isn't implemented")
    if dtype == "U8":
        _refuse_mxfp4(parts, codes)
        return nvfp4(spec, parts, codes)
    if dtype == "I32":
        return packed(spec, parts) if codes == "weight_packed" else quark(spec, parts)
    if dtype == "F8_E4M3" and codes == "weight":
        return fp8(spec, parts)
    if codes == "weight_packed":
        raise Mismatch(f"{parts[codes]} has a wrong dtype, needed U8 (NVFP4) or I32 (INT4)")
    return dense(name, spec, parts)


def _refuse_mxfp4(parts: Parts, codes: str) -> None:
    scale = parts.get("weight_scale")
    if scale is not None and scale.info.dtype in _E8M0:
        raise Mismatch(f"{parts[codes]} is MXFP4, which isn't implemented")
