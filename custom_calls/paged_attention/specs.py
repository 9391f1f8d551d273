"""The shapes that tests, warm-up and bench share: local ones of real models at tensor parallelism 1, 2 and 4, and tails."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionSpec:
    """One attention over few rows as a device sees it.

    Attributes:
      heads: query and key/value heads.
      dim: of a head.
      rows: of a verify round or draft block, at most.
      window: how far a row looks back; None for everything.
      causal: whether a row sees no later one.
      tags: "bench" ones are measured.
    """

    name: str
    heads: tuple[int, int]
    dim: int
    rows: int
    window: int | None = None
    causal: bool = True
    tags: frozenset[str] = frozenset()


def _spec(name: str, heads: tuple[int, int], dim: int, rows: int, *tags: str) -> AttentionSpec:
    return AttentionSpec(name, heads, dim, rows, tags=frozenset(tags))


CACHES = ("float16", "float32", "float8_e4m3fn", "float8_e5m2")
CONTEXTS = (2048, 4096, 32768, 131072)  # tokens
PAGE = 256

TARGETS = (
    _spec("27b tp1", (24, 4), 256, 8, "bench"),
    _spec("27b tp1 long rounds", (24, 4), 256, 16, "bench"),
    _spec("27b tp2", (12, 2), 256, 8),
    _spec("27b tp4", (6, 1), 256, 8, "bench"),
    _spec("35b tp4", (4, 1), 256, 5),
)

DRAFTS = (
    AttentionSpec("draft tp1", (32, 8), 128, 8, 2048, False, frozenset({"bench"})),
    AttentionSpec("draft tp4", (8, 2), 128, 8, 2048, False),
)

TAILS = (
    _spec("one head", (1, 1), 128, 1),
    _spec("one head of 256", (1, 1), 256, 16),
    _spec("twelve query heads", (12, 1), 256, 16),
    _spec("three heads", (3, 3), 128, 5),
)

SPECS = TARGETS + DRAFTS + TAILS
