"""What a request returns. Names and nesting follow vLLM's."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "error"]


@dataclass(frozen=True)
class Logprob:
    """Log probability of one token at one place."""

    logprob: float  # nats, of the raw model distribution
    rank: int | None = None  # 1 = likeliest
    decoded_token: str | None = None


TokenLogprobs = Mapping[int, Logprob]  # by token id: the chosen one first, then the likeliest


@dataclass(frozen=True)
class CompletionOutput:
    """One sample of a request.

    Attributes:
      token_ids: all new tokens, up to and including the one that ended the request.
      cumulative_logprob: sum over token_ids in nats; None unless logprobs were asked for.
      logprobs: one entry per token id; None unless asked for.
      finish_reason: None while unfinished.
      stop_reason: the stop token id or stop string that ended it; None for an end-of-sequence id or the length; for an
        error the sentence that says what failed.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    cumulative_logprob: float | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True)
class RequestMetrics:
    """Figures of one request.

    Attributes:
      acceptance_length: mean tokens emitted per verify round, 1.0 without speculation.
      rounds: decoding rounds (model calls after the prefill).
      accepted_per_round: drafts that each round accepted, whether or not they were still delivered.
      ttft_seconds: from the start of the request to its first token.
      decode_seconds: from the first token to the last one.
      cached_prompt_tokens: prompt tokens whose state was reused.
    """

    acceptance_length: float = 1.0
    rounds: int = 0
    accepted_per_round: tuple[int, ...] = ()
    ttft_seconds: float = 0.0
    decode_seconds: float = 0.0
    cached_prompt_tokens: int = 0


@dataclass(frozen=True)
class RequestOutput:
    """Result of one prompt.

    Attributes:
      prompt: the text, None if the prompt came as token ids.
      prompt_logprobs: one entry per prompt token, the first None; None unless asked for.
      outputs: one per sample, in order.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    outputs: tuple[CompletionOutput, ...] = ()
    finished: bool = True
    metrics: RequestMetrics = field(default_factory=RequestMetrics)


@dataclass(frozen=True)
class StreamDelta:
    """What is new since the delta before.

    Attributes:
      text: new text; may be empty while bytes of a character or the start of a stop string are held back.
      token_ids: new tokens.
      logprobs: one entry per new token; None unless asked for.
      finished: True for the last delta only.
      output: the whole result, with the last delta only.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finished: bool = False
    output: RequestOutput | None = None
