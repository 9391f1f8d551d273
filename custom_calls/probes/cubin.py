"""What a kernel of an sm_70 image needs and does, read from the image: no GPU and no disassembler.

The ELF holds registers, stack and shared memory (section headers, attributes of .nv.info). Volta's instructions have 16 bytes;
the lowest 12 bits are the operation.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_INSTRUCTION = 16
_HMMA, _LDG, _BRANCH = 0x236, 0x381, 0x947
_STEPS = 4  # HMMA instructions of one m8n8k4
_LOAD_128 = 6  # of the three bits that tell a load's width
_FRAME_SIZE = 0x11  # attribute: bytes of stack, where spilled registers go


@dataclass(frozen=True)
class Loop:
    """The innermost loop with the most matrix instructions, counted once through."""

    instructions: int
    products: int  # m8n8k4
    loads_128: int


@dataclass(frozen=True)
class Kernel:
    """One kernel of an image."""

    name: str
    registers: int
    stack_bytes: int  # 0: no register was spilled
    shared_bytes: int  # static
    loop: Loop


@dataclass(frozen=True)
class _Section:
    name: str
    data: bytes
    info: int


def kernels(image: bytes) -> dict[str, Kernel]:
    """Every kernel of a cubin for sm_70, by name.

    Raises:
      ValueError: not an ELF image.
    """
    if image[:4] != b"\x7fELF":
        raise ValueError(f"a cubin starts with ELF's mark, found {image[:4]!r}")
    sections = {s.name: s for s in _sections(image)}
    symbols = _symbols(sections)
    frames = {symbols[i]: size for i, size in _attributes(sections[".nv.info"].data, _FRAME_SIZE)}
    found = {}
    for name in (s.removeprefix(".text.") for s in sections if s.startswith(".text.")):
        text, shared = sections[f".text.{name}"], sections.get(f".nv.shared.{name}")
        size = _size(image, f".nv.shared.{name}") if shared else 0
        found[name] = Kernel(name, text.info >> 24, frames[name], size, _main_loop(text.data))
    return found


def _headers(image: bytes) -> tuple[list[tuple[int, ...]], int]:
    (start,) = struct.unpack_from("<Q", image, 0x28)
    count, strings = struct.unpack_from("<HH", image, 0x3C)
    rows = [struct.unpack_from("<IIQQQQIIQQ", image, start + 64 * i) for i in range(count)]
    return rows, rows[strings][4]


def _name(image: bytes, strings: int, row: tuple[int, ...]) -> str:
    first = strings + row[0]
    return image[first : image.index(b"\0", first)].decode()


def _sections(image: bytes) -> Iterator[_Section]:
    rows, strings = _headers(image)
    for row in rows:
        data = (
            b"" if row[1] == 8 else image[row[4] : row[4] + row[5]]
        )  # 8: takes no room in the file
        yield _Section(_name(image, strings, row), data, row[7])


def _size(image: bytes, name: str) -> int:
    rows, strings = _headers(image)
    return next(row[5] for row in rows if _name(image, strings, row) == name)


def _symbols(sections: dict[str, _Section]) -> list[str]:
    table, names = sections[".symtab"].data, sections[".strtab"].data
    firsts = (struct.unpack_from("<I", table, at)[0] for at in range(0, len(table), 24))
    return [names[first : names.index(b"\0", first)].decode() for first in firsts]


def _attributes(info: bytes, wanted: int) -> Iterator[tuple[int, int]]:
    """(symbol, value) of the attributes of one kind."""
    at = 0
    while at < len(info):
        form, kind = info[at], info[at + 1]
        (size,) = struct.unpack_from("<H", info, at + 2) if form == 4 else (0,)
        if kind == wanted and form == 4:
            yield struct.unpack_from("<II", info, at + 4)
        at += 4 + size


def _main_loop(text: bytes) -> Loop:
    words = [struct.unpack_from("<QQ", text, at) for at in range(0, len(text), _INSTRUCTION)]
    loops = []
    for end, (low, _) in enumerate(words):
        if low & 0xFFF == _BRANCH:
            (offset,) = struct.unpack("<i", struct.pack("<I", low >> 32))
            if offset < 0:
                loops.append(_counted(words[end + 1 + offset // _INSTRUCTION : end + 1]))
    busy = [loop for loop in loops if loop.products]
    most = max((loop.products for loop in busy), default=0)
    inner = [loop for loop in busy if loop.products == most]
    return min(inner, key=lambda loop: loop.instructions, default=Loop(0, 0, 0))


def _counted(words: list[tuple[int, int]]) -> Loop:
    products = sum(low & 0xFFF == _HMMA for low, _ in words) // _STEPS
    loads = sum(low & 0xFFF == _LDG and high >> 9 & 7 == _LOAD_128 for low, high in words)
    return Loop(len(words), products, loads)
