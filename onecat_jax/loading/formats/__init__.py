"""Which stored tensors make up one logical tensor, in which format, and how they are read.

Names and dtypes decide, values never do. Formats of a linear [N, K], one module each:
  dense     weight BF16, F16 or F32
  nvfp4     E2M1 codes U8: ModelOpt's weight, compressed-tensors' weight_packed
  fp8       weight F8_E4M3 with scales per tensor, row or block
  awq       INT4, qweight I32 with K outermost
  quark     INT4, weight I32 with K outermost; its nibbles are described in the quantisation record
  packed    INT4, compressed-tensors' weight_packed I32
"""

from onecat_jax.loading.formats.dense import DenseSource
from onecat_jax.loading.formats.fp8 import FP8Source
from onecat_jax.loading.formats.int4 import INT4Source
from onecat_jax.loading.formats.nvfp4 import NVFP4Source
from onecat_jax.loading.formats.parts import Mismatch, Parts, Stored, parts_of
from onecat_jax.loading.formats.quark import Packing, QuarkSource
from onecat_jax.loading.formats.recognise import source
from onecat_jax.loading.formats.source import Arrays, Format, Source, Storage

__all__ = [
    "Arrays",
    "DenseSource",
    "FP8Source",
    "Format",
    "INT4Source",
    "Mismatch",
    "NVFP4Source",
    "Packing",
    "Parts",
    "QuarkSource",
    "Source",
    "Storage",
    "Stored",
    "parts_of",
    "source",
]
