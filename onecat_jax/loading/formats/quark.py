"""Quark W4A16: weight I32 [K, ceil(N/8)], weight_scale [K/g, N], weight_zero_point I32 [K/g, ceil(N/8)].

This is the one format that names and dtypes don't settle: the order of the nibbles ("reorder", which is AWQ's, or "order") and
whether they are two's complement (int4) or unsigned (uint4) stand in the quantisation record alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onecat_jax.loading.formats.columns import INTERLEAVED, SEQUENTIAL, ColumnSource
from onecat_jax.loading.formats.int4 import CODES, INT4_SCALES, INT4_WORDS, group_size
from onecat_jax.loading.formats.parts import Checks, Parts
from onecat_jax.loading.formats.source import Storage
from onecat_jax.models.spec import TensorSpec


@dataclass(frozen=True)
class Packing:
    """What a record says about nibbles.

    Attributes:
      interleaved: pack_method "reorder" rather than "order".
      signed: dtype "int4" rather than "uint4".
    """

    interleaved: bool
    signed: bool


@dataclass(frozen=True)
class QuarkSource(ColumnSource):
    """Codes that mean nothing before the record's `packing` is known."""

    packing: Packing | None = None

    @property
    def storage(self) -> Storage:
        """Symmetric weights have zero points as well, which are all zero."""
        return Storage("int4", group=self.group)

    @property
    def places(self) -> Sequence[int]:
        return INTERLEAVED if self._known.interleaved else SEQUENTIAL

    @property
    def signed(self) -> bool:
        return self._known.signed

    @property
    def _known(self) -> Packing:
        if self.packing is None:
            raise ValueError(f"{self.weight} can't be read before its packing is known")
        return self.packing

    def packed(self, packing: Packing) -> "QuarkSource":
        """The same tensor with what the record says."""
        return replace(self, packing=packing)


def quark(spec: TensorSpec, parts: Parts) -> QuarkSource:
    """Raises Mismatch unless codes, scales and zero points are stored as they should be."""
    checks = Checks(parts, "weight", "Quark INT4")
    n, k = spec.shape
    words = -(-n // CODES)
    weight = checks.part("weight", INT4_WORDS, (k, words))
    scale = checks.of("weight_scale", INT4_SCALES, f"[K/group, {n}]")
    groups = scale.info.shape[0] if len(scale.info.shape) == 2 else 0
    scale = checks.part("weight_scale", INT4_SCALES, (groups or 1, n))
    group = group_size(checks, k, groups)
    zeros = checks.optional("weight_zero_point", INT4_WORDS, (groups, words))
    checks.nothing_else("weight", "weight_scale", "weight_zero_point")
    return QuarkSource(spec, weight.name, scale.name, zeros, group, scale.info.dtype)
