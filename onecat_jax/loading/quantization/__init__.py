"""Reads quantisation records: what they expect of every linear, one module per exporter."""

from collections.abc import Callable, Mapping
from typing import Any

from onecat_jax.errors import CheckpointError
from onecat_jax.loading.patterns import PatternError
from onecat_jax.loading.quantization.compressed import compressed
from onecat_jax.loading.quantization.modelopt import modelopt
from onecat_jax.loading.quantization.others import awq, fp8
from onecat_jax.loading.quantization.quark import quark
from onecat_jax.loading.quantization.rules import Rules

__all__ = ["Rules", "read_rules"]

_READERS: Mapping[str, Callable[[Mapping[str, Any], str], Rules]] = {
    "awq": awq,
    "compressed-tensors": compressed,
    "fp8": fp8,
    "modelopt": modelopt,
    "quark": quark,
}


def read_rules(record: Mapping[str, Any] | None, file: str) -> Rules:
    """Reads a quantization_config, or the content of hf_quant_config.json.

    Args:
      file: its file, for messages.

    Raises:
      CheckpointError: another method, something a method's reader refuses, or a pattern that is no valid regular expression.
    """
    if record is None:
        return Rules()
    method = str(record.get("quant_method", "modelopt" if "quant_algo" in record else "none"))
    if method not in _READERS:
        raise CheckpointError(
            f"{file}: quant_method is {method!r}, which isn't implemented; implemented are {', '.join(_READERS)}"
        )
    try:
        return _READERS[method](record, file)
    except PatternError as error:
        raise CheckpointError(f"{file}: the quantisation record holds {error}") from error
