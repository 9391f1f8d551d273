"""FP8: weight F8_E4M3 [N, K] and its scales, BF16, F16 or F32, which all multiply.

one per tensor: weight_scale [] or [1]
one per row: weight_scale [N] or [N, 1]
one per block of 128 x 128: weight_scale_inv or weight_scale [ceil(N/128), ceil(K/128)], or (ModelOpt) weight_scale
  [ceil(N/128), 1, ceil(K/128), 1]
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from onecat_jax.custom_calls.linear import FP8Tensor
from onecat_jax.custom_calls.linear.weights import BLOCK
from onecat_jax.loading.dtypes import DENSE
from onecat_jax.loading.formats.parts import Checks, Mismatch, Parts, Shape
from onecat_jax.loading.formats.source import Arrays, Format, Source, Storage
from onecat_jax.models.pieces import FP8_BLOCK_GRAIN, Grain
from onecat_jax.models.spec import TensorSpec
from onecat_jax.models.tensors import fp8_variant

Scales = Literal["tensor", "row", "block"]


@dataclass(frozen=True)
class FP8Source(Source):
    """E4M3 codes under floating scales.

    Attributes:
      scale: stored name of the scales.
      scales: what has one of them.
    """

    scale: str = ""
    scales: Scales = "tensor"

    format: ClassVar[Format] = "fp8"
    kind: ClassVar[type[Any]] = FP8Tensor

    @property
    def parts(self) -> tuple[str, ...]:
        return self.weight, self.scale

    @property
    def storage(self) -> Storage:
        return Storage("fp8", scales=self.scales)

    @property
    def blocked(self) -> bool:
        """Whether scales differ along K."""
        return self.scales == "block"

    @property
    def variant(self) -> str:
        return fp8_variant(self.blocked)

    @property
    def grain(self) -> Grain | None:
        return FP8_BLOCK_GRAIN if self.blocked else None

    def agrees(self, said: Storage) -> bool:
        """A matrix of one block is stored with one scale."""
        one = self.scales == "tensor" and max(self.spec.shape) <= BLOCK
        return super().agrees(said) or (one and Storage("fp8", "block").agrees(said))

    def read(self, arrays: Arrays) -> FP8Tensor:
        stored = arrays(self.scale)
        shape: Shape = ()
        if self.scales == "row":
            shape = self.spec.shape[:1]
        elif self.scales == "block":
            shape = blocks_of(self.spec.shape)
        scales = stored.reshape(shape).astype(np.float32)
        good = np.isfinite(scales) & (scales > 0)
        if not good.all():
            raise Mismatch(
                f"holds {int((~good).sum())} of {scales.size} scales that aren't finite and above zero, the first is "
                f"{scales[~good][0]}",
                self.scale,
            )
        return FP8Tensor(arrays(self.weight).view(np.uint8), scales)


def blocks_of(shape: Shape) -> Shape:
    """Blocks of a matrix, those at its end cut off."""
    return tuple(-(-size // BLOCK) for size in shape)


def fp8(spec: TensorSpec, parts: Parts) -> FP8Source:
    """Raises Mismatch unless codes and scales are stored as they should be."""
    checks = Checks(parts, "weight", "FP8")
    n, _ = spec.shape
    rows, columns = blocks_of(spec.shape)
    shapes: dict[Shape, Scales] = {
        (): "tensor",
        (1,): "tensor",
        (n,): "row",
        (n, 1): "row",
        (rows, 1, columns, 1): "block",
        (rows, columns): "block",
    }
    if "weight_scale_inv" in parts:
        suffix, shapes = "weight_scale_inv", {(rows, columns): "block"}
    else:
        suffix = "weight_scale"
    weight = checks.part("weight", ("F8_E4M3",), spec.shape)
    scale = checks.part(suffix, DENSE, *shapes)
    checks.nothing_else("weight", suffix)
    found = shapes[scale.info.shape]
    return FP8Source(spec, weight.name, scale.name, found)
