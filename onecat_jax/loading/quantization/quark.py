"""Records of Quark: a scheme per layer pattern, then one for everything."""

from collections.abc import Mapping
from typing import Any

from onecat_jax.errors import CheckpointError
from onecat_jax.loading.formats import Packing, Storage
from onecat_jax.loading.patterns import Patterns
from onecat_jax.loading.quantization.rules import (
    DENSE,
    EVERY_LINEAR,
    Group,
    Rules,
    excluded,
    integer,
    mapping,
)

_ORDERS = {"reorder": True, "order": False}
_INT4 = {"int4": True, "uint4": False}  # dtype -> two's complement
_FP8_SCALES = {"per_tensor": "tensor", "per_channel": "row"}
_LINEAR = ("Linear", "nn.Linear", "torch.nn.Linear")


def quark(record: Mapping[str, Any], file: str) -> Rules:
    """Patterns of layer_quant_config first, then the class Linear of layer_type_quant_config, then the global scheme.

    Raises:
      CheckpointError: a pack_method that isn't implemented.
    """
    method = mapping(record.get("export")).get("pack_method", "reorder")
    if method not in _ORDERS:
        raise CheckpointError(
            f"{file}: Quark's pack_method is {method!r}; {' or '.join(map(repr, _ORDERS))} is implemented"
        )
    interleaved = _ORDERS[method]
    groups = [
        _group(Patterns.of((pattern,)), scheme, interleaved)
        for pattern, scheme in mapping(record.get("layer_quant_config")).items()
    ]
    for name, scheme in mapping(record.get("layer_type_quant_config")).items():
        if name in _LINEAR:
            groups.append(_group(EVERY_LINEAR, scheme, interleaved))
    groups.append(_group(EVERY_LINEAR, record.get("global_quant_config"), interleaved))
    return Rules("quark", file, excluded(record, "exclude"), tuple(groups))


def _group(modules: Patterns, scheme: Any, interleaved: bool) -> Group:
    weight = mapping(scheme).get("weight")
    if weight is None:
        return Group(modules, DENSE)
    spec = mapping(weight)
    dtype, granularity = str(spec.get("dtype")), str(spec.get("qscheme"))
    if dtype in _INT4 and granularity == "per_group":
        storage = Storage("int4", group=integer(spec.get("group_size")))
        return Group(modules, storage, Packing(interleaved, signed=_INT4[dtype]))
    if dtype == "fp8_e4m3" and granularity in _FP8_SCALES:
        return Group(modules, Storage("fp8", _FP8_SCALES[granularity]))
    return Group(modules, Storage(f"{dtype} {granularity}"))
