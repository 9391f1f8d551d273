"""The shapes that tests and bench share: local ones of real models at tensor parallelism 1, 2 and 4, and tails."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GDNSpec:
    """GDN heads of a layer as a device sees them; all dims are 128.

    Attributes:
      tags: "bench" ones are measured.
    """

    name: str
    key_heads: int
    value_heads: int
    tags: frozenset[str] = frozenset()


SPECS = (
    GDNSpec("27b tp1", 16, 48, frozenset({"bench"})),
    GDNSpec("27b tp2", 8, 24),
    GDNSpec("27b tp4", 4, 12, frozenset({"bench"})),
    GDNSpec("35b tp1", 16, 32),
    GDNSpec("tiny tp1", 4, 8),
    GDNSpec("tiny tp4", 1, 2),
    GDNSpec("one head", 1, 1),
    GDNSpec("five values per key", 2, 10),
)
