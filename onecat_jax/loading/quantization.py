"""What a checkpoint's configuration says about formats: a cross-check of what names and dtypes say.

A contradiction means that somebody mixed files or that an exporter went wrong, so it is refused
rather than resolved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onecat_jax.loading.patterns import Patterns

_MODELOPT_NVFP4 = ("NVFP4", "W4A16_NVFP4")
_EVERY_LINEAR = Patterns.of(("*",))


@dataclass(frozen=True)
class Rules:
    """Rules of one quantisation record.

    Attributes:
      method: quant_method, "" if the checkpoint has no record; then nothing is checked.
      excluded: modules that stay dense.
      layers: (modules, format) in order; the first that matches a module decides, no match means
        dense.
    """

    method: str
    excluded: Patterns
    layers: tuple[tuple[Patterns, str], ...]

    def expected(self, module: str) -> tuple[str, str]:
        """(format, why) of a linear by canonical name; the format is "" if there is no record."""
        if not self.method:
            return "", ""
        pattern = self.excluded.match(module)
        if pattern:
            return "dense", f"it is excluded from quantisation by {pattern!r}"
        for patterns, form in self.layers:
            pattern = patterns.match(module)
            if pattern:
                return form, f"{pattern!r} makes it {form}"
        return "dense", "it is listed nowhere, so it is dense"


def read_rules(record: Mapping[str, Any] | None) -> Rules:
    """Reads a quantization_config, or the content of hf_quant_config.json.

    Raises:
      CheckpointError: a pattern is no valid regular expression.
    """
    if record is None:
        return Rules("", Patterns.of(()), ())
    method = str(record.get("quant_method", "modelopt" if "quant_algo" in record else "unknown"))
    excluded = Patterns.of(
        pattern
        for key in ("ignore", "exclude_modules", "modules_to_not_convert", "exclude")
        for pattern in _strings(record.get(key))
    )
    if method == "modelopt":
        return Rules(method, excluded, _modelopt_layers(record))
    if method == "compressed-tensors":
        return Rules(method, excluded, _compressed_layers(record))
    return Rules(method, excluded, ((_EVERY_LINEAR, method),))


def _modelopt_layers(record: Mapping[str, Any]) -> tuple[tuple[Patterns, str], ...]:
    algorithm = str(record.get("quant_algo"))
    if algorithm != "MIXED_PRECISION":
        return ((_EVERY_LINEAR, _modelopt_format(algorithm)),)
    by_format: dict[str, list[str]] = {}
    for name, entry in _mapping(record.get("quantized_layers")).items():
        form = _modelopt_format(str(_mapping(entry).get("quant_algo")))
        by_format.setdefault(form, []).append(name)
    return tuple((Patterns.of(names), form) for form, names in by_format.items())


def _modelopt_format(algorithm: str) -> str:
    return "nvfp4" if algorithm in _MODELOPT_NVFP4 else algorithm


def _compressed_layers(record: Mapping[str, Any]) -> tuple[tuple[Patterns, str], ...]:
    """Groups with names and expressions first, then those that target the class Linear."""
    named: list[tuple[Patterns, str]] = []
    general: list[tuple[Patterns, str]] = []
    for value in _mapping(record.get("config_groups")).values():
        group = _mapping(value)
        targets, form = _strings(group.get("targets")), _compressed_format(group, record)
        named.append((Patterns.of(t for t in targets if t != "Linear"), form))
        if "Linear" in targets:
            general.append((_EVERY_LINEAR, form))
    return (*named, *general)


def _compressed_format(group: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    scheme = _mapping(group.get("weights"))
    if scheme.get("num_bits") == 4 and scheme.get("type") == "float":
        return "nvfp4"
    return str(group.get("format") or record.get("format") or "unknown")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _strings(value: Any) -> tuple[str, ...]:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(v for v in value if isinstance(v, str))
    return ()
