"""Records of the methods that treat all modules alike: block FP8 as released by Qwen, and AWQ."""

from collections.abc import Mapping
from typing import Any

from onecat_jax.errors import CheckpointError
from onecat_jax.loading.formats import Storage
from onecat_jax.loading.patterns import Patterns
from onecat_jax.loading.quantization.rules import (
    EVERY_LINEAR,
    FP8_BLOCK,
    Group,
    Rules,
    excluded,
    integer,
    strings,
)

_HEAD = frozenset({"lm_head"})  # both methods convert layers only


def fp8(record: Mapping[str, Any], file: str) -> Rules:
    """Blocks of 128 x 128, or one scale per tensor where no block size is given.

    Raises:
      CheckpointError: blocks of another size.
    """
    block = record.get("weight_block_size")
    if block not in (None, FP8_BLOCK):
        raise CheckpointError(f"{file}: weight_block_size is {block}; {FP8_BLOCK} is implemented")
    only = strings(record.get("modules_to_convert"))
    modules = Patterns.of(only) if only else EVERY_LINEAR
    kept = excluded(record, "modules_to_not_convert", "ignored_layers")
    storage = Storage("fp8", "block" if block else "tensor")
    return Rules("fp8", file, kept, (Group(modules, storage),), _HEAD)


def awq(record: Mapping[str, Any], file: str) -> Rules:
    """The "gemm" packing of 4 bits.

    Raises:
      CheckpointError: another packing or width.
    """
    version, bits = record.get("version", "gemm"), record.get("bits", record.get("w_bit", 4))
    if str(version).lower() != "gemm" or bits != 4:
        raise CheckpointError(
            f"{file}: AWQ of version {version!r} with {bits} bits; version 'gemm' with 4 bits is implemented"
        )
    group = integer(record.get("group_size", record.get("q_group_size")))
    zeros = record.get("zero_point")
    storage = Storage("int4", group=group, zeros=zeros if isinstance(zeros, bool) else None)
    kept = excluded(record, "modules_to_not_convert")
    return Rules("awq", file, kept, (Group(EVERY_LINEAR, storage),), _HEAD)
