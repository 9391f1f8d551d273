"""Records of compressed-tensors: groups of targets with a scheme each."""

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
    mapping,
    strings,
)

_CLASS = "Linear"
_FP8_SCALES = {"tensor": "tensor", "channel": "row", "block": "block"}


def compressed(record: Mapping[str, Any], file: str) -> Rules:
    """Groups with names and expressions first, then those that target the class Linear.

    Raises:
      CheckpointError: weights are rotated, which would have to be undone while the model runs.
    """
    if mapping(mapping(record.get("transform_config")).get("config_groups")):
        raise CheckpointError(
            f"{file}: the quantisation record has a transform_config, and rotated weights aren't implemented; use an export "
            "without transforms"
        )
    named: list[Group] = []
    general: list[Group] = []
    for value in mapping(record.get("config_groups")).values():
        group = mapping(value)
        targets, storage = strings(group.get("targets")), _storage(group, record)
        named.append(Group(Patterns.of(t for t in targets if t != _CLASS), storage))
        if _CLASS in targets:
            general.append(Group(EVERY_LINEAR, storage))
    return Rules("compressed-tensors", file, excluded(record, "ignore"), (*named, *general))


def _storage(group: Mapping[str, Any], record: Mapping[str, Any]) -> Storage:
    """From the scheme of a group's weights; what isn't implemented keeps the record's word for it."""
    scheme = mapping(group.get("weights"))
    kind, bits = str(scheme.get("type", "int")), scheme.get("num_bits")
    word = str(group.get("format") or record.get("format") or "unknown")
    if kind == "float" and bits == 4 and not word.startswith("mxfp4"):
        return Storage("nvfp4", group=integer(scheme.get("group_size")))
    if kind == "float" and bits == 8:
        return _fp8(scheme, word)
    if kind == "int" and bits == 4:
        zeros = not scheme.get("symmetric", True)
        return Storage("int4", group=integer(scheme.get("group_size")), zeros=zeros)
    return Storage(word if word != "mixed-precision" else f"{kind}{bits}")


def _fp8(scheme: Mapping[str, Any], word: str) -> Storage:
    strategy = str(scheme.get("strategy"))
    block = scheme.get("block_structure")
    if strategy == "block" and block not in (None, FP8_BLOCK):
        return Storage(f"fp8 with scale blocks of {block}")
    return Storage("fp8", _FP8_SCALES[strategy]) if strategy in _FP8_SCALES else Storage(word)
