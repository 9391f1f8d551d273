"""From a finished or running request to what the user sees."""

from collections.abc import Sequence

from onecat_jax.outputs import (
    CompletionOutput,
    Logprob,
    RequestMetrics,
    RequestOutput,
    StreamDelta,
    TokenLogprobs,
)
from onecat_jax.request import Request, Score
from onecat_jax.text import TextStream, Tokenizer


def token_logprobs(tokenizer: Tokenizer, token: int, score: Score) -> TokenLogprobs:
    """The chosen token first, then the likeliest ones."""
    table = {token: Logprob(score.logprob, score.rank, tokenizer.token_text(token))}
    for rank, (other, value) in enumerate(zip(score.top_ids, score.top_logprobs, strict=True), 1):
        table.setdefault(other, Logprob(value, rank, tokenizer.token_text(other)))
    return table


def _prompt_logprobs(
    tokenizer: Tokenizer, request: Request
) -> tuple[TokenLogprobs | None, ...] | None:
    lost = len(request.prompt_scores) < len(request.prompt) - 1  # a launch failed before the end
    if request.params.prompt_logprobs is None or lost:
        return None
    scored = zip(request.prompt[1:], request.prompt_scores, strict=True)
    return (None, *(token_logprobs(tokenizer, token, score) for token, score in scored))


class Sample:
    """One request's text while it comes.

    A stop string ends the request at the token that completed it; tokens that the same launch produced after it are dropped.
    """

    def __init__(self, request: Request, tokenizer: Tokenizer, eos_ids: Sequence[int]) -> None:
        self.request = request
        self._tokenizer = tokenizer
        self._eos = frozenset(eos_ids)
        self._text = TextStream(tokenizer, request.params)
        self._shown = 0  # tokens already handed out
        self.told = False  # the end has been handed out too
        self.stop_string: str | None = None

    @property
    def finished(self) -> bool:
        return self.request.finish_reason is not None

    @property
    def has_news(self) -> bool:
        """Whether `advance` has something to tell."""
        return not self.told and (self.finished or len(self.request.tokens) > self._shown)

    def advance(self) -> StreamDelta:
        """Text, tokens and scores that became visible. Ends the request when a stop string matched."""
        request = self.request
        text = "".join(self._push(position) for position in range(self._shown, len(request.tokens)))
        if self.finished:
            text += self._text.finish()
            self.stop_string = self._text.matched
            if self.stop_string is not None:  # or the text's very end completed one
                self.request.finish_reason = "stop"
            self.told = True
        tokens = tuple(request.tokens[self._shown :])
        scores = request.scores[self._shown :] if request.params.logprobs is not None else None
        self._shown = len(request.tokens)
        return StreamDelta(
            text=text,
            token_ids=tokens,
            logprobs=None if scores is None else self._tables(tokens, scores),
            finished=self.finished,
        )

    def _push(self, position: int) -> str:
        request = self.request
        if position >= len(request.tokens):  # dropped by a stop string of this very launch
            return ""
        last = position == len(request.tokens) - 1
        text = self._text.push(
            request.tokens[position], is_stop=last and request.finish_reason == "stop"
        )
        if self._text.matched is not None:
            request.end_after(position + 1)
            request.finish_reason = "stop"
        return text

    def _tables(self, tokens: Sequence[int], scores: Sequence[Score]) -> tuple[TokenLogprobs, ...]:
        return tuple(
            token_logprobs(self._tokenizer, t, s) for t, s in zip(tokens, scores, strict=True)
        )

    def completion(self, index: int) -> CompletionOutput:
        """The sample so far."""
        request = self.request
        scores = request.scores if request.params.logprobs is not None else None
        return CompletionOutput(
            index=index,
            text=self._text.text,
            token_ids=tuple(request.tokens),
            cumulative_logprob=None if scores is None else sum(s.logprob for s in scores),
            logprobs=None if scores is None else self._tables(request.tokens, scores),
            finish_reason=request.finish_reason,
            stop_reason=self._stop_reason(),
        )

    def _stop_reason(self) -> int | str | None:
        request = self.request
        if request.finish_reason == "error":
            return request.error
        if self.stop_string is not None or request.finish_reason != "stop":
            return self.stop_string
        last = request.tokens[-1]
        return None if last in self._eos else last

    def metrics(self) -> RequestMetrics:
        request = self.request
        return RequestMetrics(
            acceptance_length=request.acceptance_length,
            rounds=len(request.rounds),
            accepted_per_round=tuple(r.accepted for r in request.rounds),
            ttft_seconds=max(request.first_token - request.arrived, 0.0),
            decode_seconds=request.last_token - request.first_token,
            cached_prompt_tokens=request.cached,
        )


def request_output(
    request_id: str, prompt: str | None, samples: Sequence[Sample], tokenizer: Tokenizer
) -> RequestOutput:
    """All samples of one prompt."""
    first = samples[0].request
    return RequestOutput(
        request_id=request_id,
        prompt=prompt,
        prompt_token_ids=first.prompt,
        prompt_logprobs=_prompt_logprobs(tokenizer, first),
        outputs=tuple(sample.completion(i) for i, sample in enumerate(samples)),
        finished=all(sample.finished for sample in samples),
        metrics=samples[0].metrics(),
    )
