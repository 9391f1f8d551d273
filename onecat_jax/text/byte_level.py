"""The byte alphabet of byte-level BPE: every byte has one printable character in the token strings."""


def _alphabet() -> dict[str, int]:
    """Character -> byte. Printable Latin-1 bytes stand for themselves, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table


BYTE_OF = _alphabet()


def token_bytes(piece: str) -> bytes:
    """Bytes of a token string; one with a character outside the alphabet (an added token) is plain UTF-8 text."""
    try:
        return bytes([BYTE_OF[character] for character in piece])
    except KeyError:
        return piece.encode("utf-8")
