"""Dotted names and nested dictionaries."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

Leaf = TypeVar("Leaf")


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """{"a.b": x} -> {"a": {"b": x}}."""
    tree: dict[str, Any] = {}
    for name, leaf in flat.items():
        *parents, last = name.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree


def flattened(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The inverse: (dotted name, leaf) in the order of the dictionaries."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
