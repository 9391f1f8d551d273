"""Module patterns of quantisation records: literal names, globs, expressions behind "re:"."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import translate

from onecat_jax.loading.names import spellings


class PatternError(ValueError):
    """A pattern that can't be one, and why."""


@dataclass(frozen=True)
class Patterns:
    """A set of patterns, prepared so that a thousand literal names cost no more than one.

    A literal names a module, any of its parents, or a run of its components ("in_proj_a",
    "linear_attn.in_proj_a"). A glob must span a whole module or parent name, and its `*` spans
    dots. A "re:" expression must match from the first character. Names count with and without the
    prefix of the text model.
    """

    literals: frozenset[str]
    globs: tuple[tuple[str, re.Pattern[str]], ...]
    expressions: tuple[tuple[str, re.Pattern[str]], ...]

    @staticmethod
    def of(patterns: Iterable[str]) -> "Patterns":
        """Raises PatternError if a pattern is no valid regular expression."""
        listed = tuple(patterns)
        regular = [p for p in listed if p.startswith("re:")]
        globs = [p for p in listed if p not in regular and set(p) & set("*?[")]
        return Patterns(
            literals=frozenset(listed) - set(regular) - set(globs),
            globs=tuple((p, re.compile(translate(p))) for p in globs),
            expressions=tuple((p, _compile(p)) for p in regular),
        )

    def match(self, module: str) -> str:
        """The pattern that names a canonical module, or ""."""
        names = [name for parent in _parents(module) for name in spellings(parent)]
        literal = next((n for n in (*names, *_runs(module)) if n in self.literals), "")
        if literal:
            return literal
        for pattern, glob in self.globs:
            if any(glob.match(name) for name in names):
                return pattern
        for pattern, expression in self.expressions:
            if any(expression.match(name) for name in spellings(module)):
                return pattern
        return ""


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern.removeprefix("re:"))
    except re.error as error:
        raise PatternError(f"{pattern!r}, which is no valid regular expression: {error}") from error


def _parents(module: str) -> list[str]:
    """The module, then the modules around it."""
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _runs(module: str) -> list[str]:
    parts = module.split(".")
    ends = range(len(parts), 0, -1)
    return [".".join(parts[begin:end]) for end in ends for begin in range(1, end)]
