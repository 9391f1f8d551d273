"""What a checkpoint's configuration says about formats: a cross-check of what names and dtypes say.

A contradiction means that somebody mixed files or that an exporter went wrong, so it is refused rather than resolved.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onecat_jax.loading.formats import Packing, Storage
from onecat_jax.loading.patterns import Patterns

EVERY_LINEAR = Patterns.of(("*",))
NOTHING = Patterns.of(())
DENSE = Storage("dense")
FP8_BLOCK = [128, 128]  # the only size of scale blocks that is implemented


@dataclass(frozen=True)
class Group:
    """Modules that a record treats alike.

    Attributes:
      modules: which.
      storage: how they are stored.
      packing: of Quark INT4, what names and dtypes can't tell.
    """

    modules: Patterns
    storage: Storage
    packing: Packing | None = None


@dataclass(frozen=True)
class Rules:
    """Rules of one quantisation record.

    Attributes:
      method: quant_method, "" if the checkpoint has no record; then nothing is checked.
      file: the record's file.
      excluded: modules that stay dense.
      groups: the first that matches a module decides, no match means dense.
      free: modules that the method's exporters leave dense without saying so.
    """

    method: str = ""
    file: str = ""
    excluded: Patterns = NOTHING
    groups: tuple[Group, ...] = ()
    free: frozenset[str] = field(default_factory=frozenset)

    def expected(self, module: str) -> tuple[Storage | None, str]:
        """How a linear of a canonical name should be stored, and why; None if there is no record."""
        if not self.method:
            return None, ""
        pattern = self.excluded.match(module)
        if pattern:
            return DENSE, f"it is excluded from quantisation by {pattern!r}"
        for group in self.groups:
            pattern = group.modules.match(module)
            if pattern:
                return group.storage, f"{pattern!r} makes it {group.storage}"
        return DENSE, "it is listed nowhere, so it is dense"

    def packing(self, module: str) -> Packing | None:
        """What the record says about the nibbles of a linear."""
        found = (group.packing for group in self.groups if group.modules.match(module))
        return next(found, None)


def mapping(value: Any) -> Mapping[str, Any]:
    """An object, or an empty one in the place of anything else."""
    return value if isinstance(value, Mapping) else {}


def strings(value: Any) -> tuple[str, ...]:
    """The strings of a list, or of anything else none."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(v for v in value if isinstance(v, str))
    return ()


def excluded(record: Mapping[str, Any], *keys: str) -> Patterns:
    """Modules listed under any of these keys; a dot at the end of a name means nothing."""
    listed: Iterable[str] = (name for key in keys for name in strings(record.get(key)))
    return Patterns.of(name if name.startswith("re:") else name.rstrip(".") for name in listed)


def integer(value: Any) -> int:
    """A whole number above zero, 0 in the place of anything else."""
    return value if type(value) is int and value > 0 else 0
