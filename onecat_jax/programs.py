"""Compiled programs by name and shape. Compiling is explicit, counted and timed; a call never compiles by surprise."""

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.sharding import PartitionSpec

from onecat_jax.sharding import TP, Placement
from onecat_jax.speculation.params import engine_specs

Key = tuple[Hashable, ...]


@dataclass
class Programs:
    """Ahead-of-time compiled steps. Owned by one engine.

    A step maps (params, state, *operands) to (state, result); the state is donated. It runs once per rank inside one
    shard_map: weights and state are the rank's pieces, operands and result the same on all ranks.

    A compiled program refuses arguments of another shape instead of compiling again, so `compiles` is the whole truth.
    """

    placement: Placement
    compiles: int = 0
    compile_seconds: float = 0.0
    _table: dict[Key, Any] = field(default_factory=dict)

    def call(self, key: Key, step: Callable, args: tuple[Any, ...]) -> Any:
        """Runs the program `key`, which is `step` compiled for the shapes of `args` on first use."""
        program = self._table.get(key)
        if program is None:
            program = self._table[key] = self._compile(step, args)
        return program(*args)

    def _compile(self, step: Callable, args: tuple[Any, ...]) -> Any:
        begin = time.perf_counter()
        compiled = jax.jit(self._over_ranks(step, args), donate_argnums=1).lower(*args).compile()
        self.compiles += 1
        self.compile_seconds += time.perf_counter() - begin
        return compiled

    def _over_ranks(self, step: Callable, args: tuple[Any, ...]) -> Callable:
        if self.placement.size == 1:
            return step
        whole = PartitionSpec()
        params, state = engine_specs(args[0]), args[1].specs(TP)
        in_specs = (params, state, *[whole] * (len(args) - 2))
        return self.placement.shard_map(step, in_specs=in_specs, out_specs=(state, whole))

    def hlo(self, key: Key) -> str:
        """Optimised HLO of a compiled program."""
        return self._table[key].as_text()

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple(self._table)
