"""Numbers of bytes in words."""


def gib(count: float) -> str:
    """Bytes for people: "1.50 GiB", "12.0 MiB"."""
    return f"{count / 2**30:.2f} GiB" if abs(count) >= 2**30 else f"{count / 2**20:.1f} MiB"
