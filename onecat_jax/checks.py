"""Checks of engine arguments: whatever kind of value is passed, a refusal is one sentence."""

from collections.abc import Collection
from typing import Any

from onecat_jax.errors import EngineError, shown

LARGEST = 2**31 - 1  # of sizes: positions and counts are int32 on the device


def refused(name: str, value: Any, needed: str) -> EngineError:
    """The refusal of a value."""
    return EngineError(f"{name} is {shown(value)}; {needed}.")


def member(name: str, value: Any, allowed: Collection[str]) -> None:
    """Refuses what isn't one of some names."""
    if not isinstance(value, str) or value not in allowed:
        raise refused(name, value, f"it must be one of {', '.join(allowed)}")


def whole(name: str, value: Any, low: int, high: int = LARGEST) -> None:
    """Refuses what isn't a whole number in a range."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and low <= value <= high:
        return
    unbounded = high == LARGEST and not (is_whole and value > high)
    limits = f"of at least {low}" if unbounded else f"from {low} to {high}"
    raise refused(name, value, f"a whole number {limits} is needed")


def number(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    """Refuses what isn't a number in a range, NaN among it."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and low <= value <= high and not (open_low and value == low):
        return
    must = "it must lie in" if is_number else "it must be a number in"
    raise refused(name, value, f"{must} {'(' if open_low else '['}{low:g}, {high:g}]")


def flag(name: str, value: Any) -> None:
    """Refuses what isn't True or False."""
    if not isinstance(value, bool):
        raise refused(name, value, "true or false is needed")
