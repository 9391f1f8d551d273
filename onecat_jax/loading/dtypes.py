"""The dtypes a safetensors file may hold and what they are in numpy."""

import ml_dtypes
import numpy as np

_NUMPY: dict[str, type] = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F32": np.float32,
    "F64": np.float64,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}

DTYPES: dict[str, np.dtype] = {name: np.dtype(kind) for name, kind in _NUMPY.items()}

DENSE = ("BF16", "F16", "F32")
"""Dtypes in which an unquantised weight may be stored."""

INDEX = ("I32", "I64", "U8", "BOOL")
"""Dtypes of tables of whole numbers."""

FP8 = ("F8_E4M3", "F8_E5M2")
