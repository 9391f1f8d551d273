"""Which body of an operator runs, and why not a faster one.

Every operator keeps an ordered list of candidates, fastest first, ending in plain JAX, which accepts everything. `choose`
asks each for a reason to decline and takes the first that has none. The answer is a pure function of the descriptor, the
policy and the target, so results are reproducible; it is recorded, so that a report can say what ran.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax

from onecat_jax.errors import EngineError

Backend = Literal["auto", "plain"]
PLAIN = "plain"


@dataclass(frozen=True)
class Target:
    """The hardware that a program is compiled for.

    Attributes:
      platform: "cpu" or "gpu".
      capability: CUDA compute capability as 10 * major + minor (70 for V100); 0 on CPU.
    """

    platform: str
    capability: int = 0

    @classmethod
    def detect(cls) -> "Target":
        """The default device of this process."""
        device = jax.local_devices()[0]
        if device.platform != "gpu":
            return cls(device.platform)
        major, minor = str(device.compute_capability).split(".")
        return cls("gpu", 10 * int(major) + int(minor))

    def __str__(self) -> str:
        if self.platform != "gpu":
            return self.platform
        return f"a GPU of compute capability {self.capability // 10}.{self.capability % 10}"


@dataclass(frozen=True)
class Policy:
    """How routes are chosen. Hashable, so it can be a static argument of a jitted function.

    Attributes:
      backend: "auto" takes the fastest body that supports the call, "plain" always takes plain JAX.
      strict: raise EngineError where "auto" would fall back to plain JAX.
      target: the hardware compiled for; None means the default device.
    """

    backend: Backend = "auto"
    strict: bool = False
    target: Target | None = None

    def __post_init__(self) -> None:
        if self.backend not in ("auto", "plain"):
            raise EngineError(f"backend is {self.backend!r}; it must be 'auto' or 'plain'.")

    def resolved_target(self) -> Target:
        return self.target if self.target is not None else Target.detect()


@dataclass(frozen=True)
class Candidate:
    """One body of an operator: its name and the reason why it can't take a call (None when it can)."""

    name: str
    decline: Callable[[Any, Target], str | None]


@dataclass(frozen=True)
class Route:
    """The body that was chosen, and (name, reason) of every faster one that declined."""

    name: str
    declined: tuple[tuple[str, str], ...] = ()

    def explain(self) -> str:
        """One sentence: what runs and why nothing faster does."""
        if not self.declined:
            return self.name
        return f"{self.name}, because " + "; ".join(f"{n}: {why}" for n, why in self.declined)


def choose(
    operator: str,
    descriptor: Any,
    candidates: Sequence[Candidate],
    policy: Policy,
) -> Route:
    """The first candidate that accepts the descriptor, else plain JAX.

    Raises:
      EngineError: in strict mode, when only plain JAX is left although the backend is "auto".
    """
    if policy.backend == PLAIN:
        route = Route(PLAIN, tuple((c.name, "the backend was set to plain") for c in candidates))
    else:
        route = _first_accepting(descriptor, candidates, policy.resolved_target())
        if policy.strict and route.name == PLAIN and route.declined:
            raise EngineError(
                f"{operator} has no fast route for {descriptor}: {route.explain()}. "
                "Turn strict off to run it in plain JAX, or change what the reason names."
            )
    _REPORT.record(operator, str(descriptor), route)
    return route


def _first_accepting(descriptor: Any, candidates: Sequence[Candidate], target: Target) -> Route:
    declined: list[tuple[str, str]] = []
    for candidate in candidates:
        reason = candidate.decline(descriptor, target)
        if reason is None:
            return Route(candidate.name, tuple(declined))
        declined.append((candidate.name, reason))
    return Route(PLAIN, tuple(declined))


@dataclass(frozen=True)
class RouteRecord:
    """One line of the report: how often a route was chosen while tracing (not how often it ran)."""

    operator: str
    descriptor: str
    route: Route
    traces: int


@dataclass
class _Report:
    lock: threading.Lock = field(default_factory=threading.Lock)
    counts: dict[tuple[str, str, Route], int] = field(default_factory=dict)

    def record(self, operator: str, descriptor: str, route: Route) -> None:
        key = (operator, descriptor, route)
        with self.lock:
            self.counts[key] = self.counts.get(key, 0) + 1


_REPORT = _Report()


def routes() -> tuple[RouteRecord, ...]:
    """Every (operator, descriptor) traced in this process with the route it got, in the order first seen."""
    with _REPORT.lock:
        return tuple(RouteRecord(*key, traces) for key, traces in _REPORT.counts.items())


def reset_routes() -> None:
    """Empties the report."""
    with _REPORT.lock:
        _REPORT.counts.clear()
