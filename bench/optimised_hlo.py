"""Reads optimised HLO as text: what each computation starts on a GPU, and which buffers it makes."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

_BITS = {"pred": 8, "bf16": 16, "f8e4m3fn": 8, "f8e5m2": 8}  # others end with their bits
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (.*?) ([\w-]+)\(")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
_CALLED = re.compile(
    r"(?:to_apply|body|calls|true_computation|false_computation)=%?([\w.-]+)"
    r"|branch_computations=\{([^}]*)\}"
)
_TARGET = re.compile(r'custom_call_target="([^"]+)"')
_FREE = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "iota", "after-all"}
_CALLS = {"call", "async-start"}
_CONTROL = {"while", "conditional", *_CALLS}

Parts = dict[str, list["Instruction"]]  # instructions by computation; the program's own is "ENTRY"


@dataclass(frozen=True)
class Instruction:
    """One line of HLO."""

    name: str
    shape: str  # as printed
    kind: str
    line: str

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of all its results."""
        found = _SHAPE.findall(self.shape)
        return [tuple(int(dim) for dim in dims.split(",") if dim) for _, dims in found]

    @property
    def nbytes(self) -> int:
        """Of all its results."""
        names = [name for name, _ in _SHAPE.findall(self.shape)]
        bits = (_BITS.get(name) or int(re.sub(r"\D", "", name) or 0) for name in names)
        return sum(b * math.prod(dims) for b, dims in zip(bits, self.shapes, strict=True)) // 8

    @property
    def called(self) -> list[str]:
        """Computations that it runs: the body of a loop, the branches of a condition."""
        text = " ".join(a or b for a, b in _CALLED.findall(self.line))
        return re.findall(r"[\w.-]+", text)

    @property
    def target(self) -> str | None:
        """Of a custom call."""
        match = _TARGET.search(self.line)
        return match[1] if match else None

    @property
    def starts(self) -> bool:
        """Whether it is a kernel, or a copy, of its own."""
        return self.kind not in _FREE | _CONTROL


@dataclass(frozen=True)
class Kernels:
    """What is started once through."""

    custom: int = 0
    fusions: int = 0
    other: int = 0

    @property
    def total(self) -> int:
        return self.custom + self.fusions + self.other

    def __add__(self, other: "Kernels") -> "Kernels":
        return Kernels(
            self.custom + other.custom, self.fusions + other.fusions, self.other + other.other
        )


def computations(hlo: str) -> Parts:
    """All computations of a module."""
    found: Parts = {}
    name = ""
    for line in hlo.splitlines():
        if line.endswith("{") and not line.startswith(" "):
            name = "ENTRY" if line.startswith("ENTRY") else line.split()[0].lstrip("%")
            found[name] = []
        elif match := _INSTRUCTION.match(line):
            found[name].append(Instruction(*match.groups(), line))
    return found


def count(parts: Parts, name: str) -> Kernels:
    """What a computation starts, the bodies of loops inside it left out; of a condition its largest branch."""
    found = Kernels()
    for one in parts[name]:
        if one.kind == "conditional":
            found += max((count(parts, b) for b in one.called), key=lambda kernels: kernels.total)
        elif one.kind in _CALLS:
            found += count(parts, one.called[-1])
        elif one.starts:
            custom, fusion = one.kind == "custom-call", one.kind == "fusion"
            found += Kernels(custom, fusion, not custom and not fusion)
    return found


def running(parts: Parts, name: str = "ENTRY") -> Iterator[Instruction]:
    """Every instruction that a computation runs one by one, in loops, calls and branches too."""
    for one in parts[name]:
        yield one
        if one.kind in _CONTROL:
            for inner in one.called:
                yield from running(parts, inner)


def loops(parts: Parts) -> list[str]:
    """Bodies of all loops that run."""
    return [one.called[-1] for one in running(parts) if one.kind == "while"]


def in_place(one: Instruction, parts: Parts) -> bool:
    """Whether it changes an operand instead of making a new buffer."""
    if one.kind == "dynamic-update-slice" or "output_to_operand_aliasing" in one.line:
        return True
    if one.kind != "fusion":
        return False
    return any(i.kind in ("dynamic-update-slice", "scatter") for i in parts[one.called[-1]])
