"""One sequence on its way through the engine: host state, no device arrays."""

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from onecat_jax.outputs import FinishReason
from onecat_jax.sampling import SamplingState
from onecat_jax.sampling_params import SamplingParams
from onecat_jax.speculation.pace import NO_PACING, Pace

_NO_DRAFTS = Pace.start(np.int32(0), NO_PACING)


@dataclass(frozen=True)
class Score:
    """What is known of one token's probability."""

    logprob: float
    rank: int
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Round:
    """One decoding round of one request."""

    drafted: int
    accepted: int  # drafts, whether or not they were still delivered

    @property
    def emitted(self) -> int:
        """Tokens that the round verified: the accepted drafts and one more."""
        return self.accepted + 1


@dataclass(eq=False)
class Request:
    """A prompt, its settings, and what came of it so far. Identity is the object."""

    request_id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    sampling: SamplingState  # host row
    longest: int  # tokens the sequence may grow to, prompt included
    slot: int = 0
    pages: tuple[int, ...] = ()
    tokens: list[int] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    prompt_scores: list[Score] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: str | None = None
    pace: Pace = _NO_DRAFTS  # host row: how many drafts its next round should have
    rounds: list[Round] = field(default_factory=list)
    cached: int = 0  # prompt tokens that another request's prefill stands for
    arrived: float = 0.0  # seconds, monotonic clock
    first_token: float = 0.0
    last_token: float = 0.0

    @property
    def budget(self) -> int:
        """New tokens that may still come."""
        return self.longest - len(self.prompt) - len(self.tokens)

    @property
    def next_input(self) -> int:
        """The token that isn't in the state yet."""
        return self.tokens[-1] if self.tokens else self.prompt[-1]

    @property
    def position(self) -> int:
        """Tokens in the state once the prompt is prefilled: all but the last."""
        return len(self.prompt) + len(self.tokens) - 1

    @property
    def acceptance_length(self) -> float:
        """Mean tokens that a round verified; 1.0 before the first."""
        return sum(r.emitted for r in self.rounds) / len(self.rounds) if self.rounds else 1.0

    def end_after(self, count: int) -> None:
        """Forgets all but the first `count` tokens and the rounds that they took: text ended the request there, and how much
        its launch did beyond is an accident."""
        rounds = bisect_left(list(accumulate(r.emitted for r in self.rounds)), count) + 1
        del self.tokens[count:], self.scores[count:], self.rounds[rounds:]

    def continues(self, leader: "Request") -> bool:
        """Whether this one can start from what the leader's prefill leaves: the same prompt object, no more wanted of it."""
        return (
            self.prompt is leader.prompt
            and len(self.prompt) > 1
            and self.params.prompt_logprobs is None
            and bool(leader.sampling.penalised or not self.sampling.penalised)
        )
