"""The shapes that tests, warm-up and bench share: local ones of real models at tensor parallelism 1, 2 and 4, and tails."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LinearSpec:
    """One linear as a device sees it.

    Attributes:
      n, k: output and input features.
      tags: "fast" ones are tested by default, "bench" ones are measured.
    """

    name: str
    n: int
    k: int
    tags: frozenset[str] = frozenset()


def _spec(name: str, n: int, k: int, *tags: str) -> LinearSpec:
    return LinearSpec(name, n, k, frozenset(tags))


ROWS = (1, 2, 3, 8, 16, 17, 64, 65, 512)
FAST_ROWS = (1, 3, 8, 17, 65)

TINY = (
    _spec("tiny tp1 attention qkv", 6144, 384),
    _spec("tiny tp1 attention out", 384, 2048, "fast"),
    _spec("tiny tp1 gdn in", 3072, 384),
    _spec("tiny tp1 gdn out", 384, 1024),
    _spec("tiny tp1 gate up", 2304, 384, "bench"),
    _spec("tiny tp1 down", 384, 1152, "bench"),
    _spec("tiny tp4 attention qkv", 1536, 384, "fast"),
    _spec("tiny tp4 attention out", 384, 512),
    _spec("tiny tp4 gdn in", 768, 384),
    _spec("tiny tp4 gdn out", 384, 256, "fast"),
    _spec("tiny tp4 gate up", 576, 384),
    _spec("tiny tp4 down", 384, 288, "fast"),
)

QWEN_27B = (
    _spec("27b tp1 attention qkv", 14336, 5120, "bench"),
    _spec("27b tp1 out", 5120, 6144, "bench"),
    _spec("27b tp1 gdn in", 16384, 5120, "bench"),
    _spec("27b tp1 gate up", 34816, 5120, "bench"),
    _spec("27b tp1 down", 5120, 17408, "bench"),
    _spec("27b tp2 attention qkv", 7168, 5120),
    _spec("27b tp2 out", 5120, 3072),
    _spec("27b tp2 gdn in", 8192, 5120),
    _spec("27b tp2 gate up", 17408, 5120),
    _spec("27b tp2 down", 5120, 8704),
    _spec("27b tp4 attention qkv", 3584, 5120),
    _spec("27b tp4 out", 5120, 1536, "bench"),
    _spec("27b tp4 gdn in", 4096, 5120, "bench"),
    _spec("27b tp4 gate up", 8704, 5120, "bench"),
    _spec("27b tp4 down", 5120, 4352, "bench"),
    _spec("27b tp4 fused gdn in and gates", 4120, 5120),
)

TAILS = (
    _spec("one row", 1, 32, "fast"),
    _spec("one unit of every layout", 32, 64, "fast"),
    _spec("n below a tile, k below a unit", 7, 32, "fast"),
    _spec("n and k tails", 100, 288, "fast"),
    _spec("n tail of 8 in 32", 40, 96, "fast"),
    _spec("k of one group more than a panel", 24, 1056, "fast"),
    _spec("k of fewer units than warps", 64, 160, "fast"),
)

SPECS = TINY + QWEN_27B + TAILS
