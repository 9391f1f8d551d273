"""Unquantised tensors of the logical shape: weight BF16, F16 or F32; whole numbers for an index."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from onecat_jax.custom_calls.linear import DenseTensor
from onecat_jax.loading.dtypes import DENSE, INDEX
from onecat_jax.loading.formats.parts import Mismatch, Parts
from onecat_jax.loading.formats.source import Arrays, Format, Source, Storage
from onecat_jax.models.pieces import HostTensor
from onecat_jax.models.spec import TensorSpec


@dataclass(frozen=True)
class DenseSource(Source):
    """A tensor in a floating dtype, or an index.

    Attributes:
      dtype: as safetensors names it.
    """

    format: ClassVar[Format] = "dense"
    dtype: str = "F32"

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.weight,)

    @property
    def storage(self) -> Storage:
        return Storage("dense")

    @property
    def kind(self) -> type[Any]:
        return DenseTensor if self.spec.kind == "linear" else np.ndarray

    def read(self, arrays: Arrays) -> HostTensor:
        weight = arrays(self.weight)
        return DenseTensor(weight) if self.spec.kind == "linear" else weight


def dense(name: str, spec: TensorSpec, parts: Parts) -> DenseSource:
    """Raises Mismatch unless the weight, and nothing else, is stored as it should be."""
    if "weight" not in parts:
        raise Mismatch(f"{name} is missing, needed {list(spec.shape)}")
    weight = parts["weight"]
    dtypes = INDEX if spec.kind == "index" else DENSE
    if weight.info.dtype not in dtypes:
        raise Mismatch(f"{weight} has a wrong dtype, needed {', '.join(dtypes)}")
    if weight.info.shape != spec.shape:
        raise Mismatch(f"{weight} has a wrong shape, needed {list(spec.shape)}")
    rest = [part for suffix, part in parts.items() if suffix != "weight"]
    if rest:
        raise Mismatch(f"{weight} is dense, yet quantisation scales lie beside it: {rest[0]}")
    return DenseSource(spec, weight.name, weight.info.dtype)
