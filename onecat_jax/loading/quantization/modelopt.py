"""Records of ModelOpt: quant_algo, and quantized_layers where it is MIXED_PRECISION."""

from collections.abc import Mapping
from typing import Any

from onecat_jax.loading.formats import Storage
from onecat_jax.loading.patterns import Patterns
from onecat_jax.loading.quantization.rules import (
    EVERY_LINEAR,
    Group,
    Rules,
    excluded,
    integer,
    mapping,
)

_MIXED = "MIXED_PRECISION"
_STORAGE = {
    "NVFP4": Storage("nvfp4"),
    "W4A16_NVFP4": Storage("nvfp4"),
    "W4A8_NVFP4_FP8": Storage("nvfp4"),
    "FP8": Storage("fp8", "tensor"),
    "FP8_PER_CHANNEL_PER_TOKEN": Storage("fp8", "row"),
    "FP8_PB_WO": Storage("fp8", "block"),
}


def modelopt(record: Mapping[str, Any], file: str) -> Rules:
    """Without a quant_algo nothing but the KV cache is quantised."""
    algorithm = record.get("quant_algo")
    groups: tuple[Group, ...] = ()
    if algorithm is not None and str(algorithm).upper() == _MIXED:
        groups = _listed(mapping(record.get("quantized_layers")))
    elif algorithm is not None:
        groups = (Group(EVERY_LINEAR, _storage(record)),)
    return Rules("modelopt", file, excluded(record, "ignore", "exclude_modules"), groups)


def _listed(layers: Mapping[str, Any]) -> tuple[Group, ...]:
    names: dict[Storage, list[str]] = {}
    for name, entry in layers.items():
        names.setdefault(_storage(mapping(entry)), []).append(name)
    return tuple(Group(Patterns.of(listed), storage) for storage, listed in names.items())


def _storage(entry: Mapping[str, Any]) -> Storage:
    algorithm = str(entry.get("quant_algo"))
    found = _STORAGE.get(algorithm.upper(), Storage(algorithm))
    if found.format != "nvfp4":
        return found
    return Storage("nvfp4", group=integer(entry.get("group_size")))
