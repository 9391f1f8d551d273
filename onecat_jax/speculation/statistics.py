"""What an engine's rounds came to: counters for people, `LLM.stats` and metrics."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Statistics:
    """Sums over all launches of an engine. A round is counted once per request that it ran for.

    Attributes:
      launches: dispatches of the decode loop, each with one read by the host.
      rounds: rounds of requests, with and without drafts.
      drafted_rounds: those of them with drafts.
      drafted, accepted: drafts that were verified, and accepted.
      accepted_at: rounds in which at least 1, 2, ... drafts were accepted.
      delivered: tokens handed out.
      steps: rounds of the device loop by their width, whatever number of requests they ran for.
      seconds: wall time of the launches, compiling left out, by the width of their rounds.
    """

    launches: int = 0
    rounds: int = 0
    drafted_rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    delivered: int = 0
    accepted_at: list[int] = field(default_factory=list)
    steps: dict[int, int] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)

    def add_launch(self, rounds: Any, width: int, seconds: float) -> None:
        """Takes a launch in: host arrays [R, B] of `rounds.Round`."""
        ran = rounds.count > 0
        with_drafts = ran & (rounds.drafted > 0)
        self.launches += 1
        self.rounds += int(ran.sum())
        self.drafted_rounds += int(with_drafts.sum())
        self.drafted += int(rounds.drafted.sum())
        self.accepted += int(rounds.accepted.sum())
        self.delivered += int(rounds.count.sum())
        self._add_places(rounds.accepted[with_drafts], width - 1)
        self.steps[width] = self.steps.get(width, 0) + int(ran.any(axis=1).sum())
        self.seconds[width] = self.seconds.get(width, 0.0) + seconds

    def _add_places(self, accepted: np.ndarray, places: int) -> None:
        self.accepted_at += [0] * (places - len(self.accepted_at))
        for place in range(places):
            self.accepted_at[place] += int((accepted > place).sum())

    @property
    def decode_steps(self) -> int:
        """Rounds of the device loop."""
        return sum(self.steps.values())

    @property
    def acceptance_length(self) -> float:
        """Tokens that a round verified in the mean, pooled over requests; 1.0 before the first."""
        return 1 + self.accepted / self.rounds if self.rounds else 1.0

    def summary(self) -> dict[str, Any]:
        """The figures of drafting as JSON-ready values."""
        rounds = max(self.drafted_rounds, 1)
        return {
            "rounds": self.rounds,
            "drafted_rounds": self.drafted_rounds,
            "drafted_tokens": self.drafted,
            "accepted_tokens": self.accepted,
            "acceptance_rate": self.accepted / self.drafted if self.drafted else None,
            "acceptance_length": self.acceptance_length,
            "acceptance_per_position": [count / rounds for count in self.accepted_at],
            "ms_per_round": {
                str(width): 1000 * self.seconds[width] / steps
                for width, steps in sorted(self.steps.items())
                if steps
            },
        }
