"""A stand-in for the engine: it speaks the part of `LLM` that the command line uses and answers from a script."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from onecat_jax.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput, StreamDelta
from onecat_jax.sampling_params import SamplingParams


@dataclass
class Script:
    """What the engine answers, and what it was asked."""

    pieces: tuple[str, ...] = ("Hel", "", "lo")
    finish_reason: str = "stop"
    stop_reason: Any = None
    interrupt_after: int | None = None  # pieces before a Ctrl-C
    refuse: Exception | None = None
    load_error: Exception | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[Any, SamplingParams, Any]] = field(default_factory=list)
    closed: int = 0


def module_for(script: Script) -> ModuleType:
    """A module with a class LLM that follows the script, to stand in for onecat_jax.llm."""

    class LLM:
        def __init__(self, **arguments: Any) -> None:
            script.arguments = arguments
            if script.load_error is not None:
                raise script.load_error
            self.default_sampling_params = SamplingParams(temperature=0.7, top_k=20)

        def stream(self, prompt: str, params: SamplingParams) -> Iterator[StreamDelta]:
            script.asked.append((prompt, params, None))
            return _deltas(script, prompt, params)

        def chat_stream(
            self, messages: list, params: SamplingParams, tools=None, chat_template_kwargs=None
        ) -> Iterator[StreamDelta]:
            script.asked.append((messages, params, chat_template_kwargs))
            return _deltas(script, None, params)

        def stats(self) -> dict[str, float]:
            return {"compile_seconds": 3.25}

    module = ModuleType("onecat_jax.llm")
    module.LLM = LLM
    return module


def _deltas(script: Script, prompt: str | None, params: SamplingParams) -> Iterator[StreamDelta]:
    if script.refuse is not None:
        raise script.refuse
    try:
        for index, piece in enumerate(script.pieces):
            if index == script.interrupt_after:
                raise KeyboardInterrupt
            yield StreamDelta(text=piece, token_ids=(index,))
        yield StreamDelta(finished=True, output=_output(script, prompt, params))
    finally:
        script.closed += 1


def _output(script: Script, prompt: str | None, params: SamplingParams) -> RequestOutput:
    count = len(script.pieces)
    tables = None
    if params.logprobs is not None:
        tables = tuple(
            {i: Logprob(-0.5, 1, p), 9: Logprob(-1.5, 2, "x")} for i, p in enumerate(script.pieces)
        )
    sample = CompletionOutput(
        index=0,
        text="".join(script.pieces),
        token_ids=tuple(range(count)),
        cumulative_logprob=None if tables is None else -0.5 * count,
        logprobs=tables,
        finish_reason=script.finish_reason,
        stop_reason=script.stop_reason,
    )
    metrics = RequestMetrics(rounds=2, ttft_seconds=0.5, decode_seconds=0.25)
    return RequestOutput("0", prompt, (1, 2, 3, 4), outputs=(sample,), metrics=metrics)
