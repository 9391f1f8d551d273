"""AWQ in its "gemm" packing: qweight I32 [K, N/8], scales [K/g, N], qzeros I32 [K/g, N/8] unless it is symmetric."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onecat_jax.loading.formats.columns import INTERLEAVED, ColumnSource
from onecat_jax.loading.formats.int4 import CODES, INT4_SCALES, INT4_WORDS, group_size
from onecat_jax.loading.formats.parts import Checks, Mismatch, Parts
from onecat_jax.models.spec import TensorSpec


@dataclass(frozen=True)
class AWQSource(ColumnSource):
    """Unsigned codes in interleaved nibbles."""

    places: ClassVar[Sequence[int]] = INTERLEAVED
    signed: ClassVar[bool] = False


def awq(spec: TensorSpec, parts: Parts) -> AWQSource:
    """Raises Mismatch unless codes, scales and zero points are stored as they should be."""
    checks = Checks(parts, "qweight", "AWQ INT4")
    n, k = spec.shape
    codes = parts["qweight"]
    if "g_idx" in parts or codes.info.shape == (k // CODES, n) != (k, n // CODES):
        raise Mismatch(f"{codes} is GPTQ INT4, which isn't implemented")
    if n % CODES:
        raise checks.bad(f"which needs N a multiple of {CODES}, N is {n}")
    codes = checks.part("qweight", INT4_WORDS, (k, n // CODES))
    scales = checks.of("scales", INT4_SCALES, f"[K/group, {n}]")
    groups = scales.info.shape[0] if len(scales.info.shape) == 2 else 0
    scales = checks.part("scales", INT4_SCALES, (groups or 1, n))
    group = group_size(checks, k, groups)
    zeros = checks.optional("qzeros", INT4_WORDS, (groups, n // CODES))
    checks.nothing_else("qweight", "scales", "qzeros")
    return AWQSource(spec, codes.name, scales.name, zeros, group, scales.info.dtype)
