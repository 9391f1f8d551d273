"""Compiled programs by name and shape. Compiling is explicit, counted and timed; a call never compiles by surprise."""

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import jax

Key = tuple[Hashable, ...]


@dataclass
class Programs:
    """Ahead-of-time compiled functions. Owned by one engine.

    A compiled program refuses arguments of another shape instead of compiling again, so `compiles` is the whole truth.
    """

    compiles: int = 0
    compile_seconds: float = 0.0
    _table: dict[Key, Any] = field(default_factory=dict)

    def call(
        self,
        key: Key,
        build: Callable[[], Callable],
        args: tuple[Any, ...],
        donate: tuple[int, ...] = (),
    ) -> Any:
        """Runs the program `key`, compiling `build()` for the shapes of `args` on first use."""
        program = self._table.get(key)
        if program is None:
            program = self._table[key] = self._compile(build(), args, donate)
        return program(*args)

    def _compile(self, function: Callable, args: tuple[Any, ...], donate: tuple[int, ...]) -> Any:
        begin = time.perf_counter()
        compiled = jax.jit(function, donate_argnums=donate).lower(*args).compile()
        self.compiles += 1
        self.compile_seconds += time.perf_counter() - begin
        return compiled

    def hlo(self, key: Key) -> str:
        """Optimised HLO of a compiled program."""
        return self._table[key].as_text()

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple(self._table)
