"""The engine core: owns the device state, turns queued requests into launches, and hands back new tokens.

A request's last prompt token is never prefilled: it is the first row that the decode loop feeds, so every token, the first
included, is picked in one place.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import jax
import numpy as np
from jax import Array

from onecat_jax.buckets import Buckets
from onecat_jax.errors import EngineError
from onecat_jax.models.qwen3_5 import Params, StepBatch
from onecat_jax.programs import Programs
from onecat_jax.request import Request, Score
from onecat_jax.sampling import stack_rows
from onecat_jax.scheduler import Scheduler
from onecat_jax.state import CacheState
from onecat_jax.steps import (
    LENGTH,
    RUNNING,
    STOPPED,
    UNHEALTHY,
    DecodeRows,
    Launch,
    StepOptions,
    TokenScores,
    decode,
    prefill,
    prefill_scored,
)

_SHORT_LAUNCH = 8  # steps while somebody waits for the text or for a row
_SCORES = (None, 0, 20)  # compiled numbers of likeliest tokens; a request takes the next larger


@dataclass
class Engine:
    """Single-threaded: one caller drives `step`."""

    params: Params
    new_state: Callable[[], CacheState]
    options: StepOptions
    buckets: Buckets
    scheduler: Scheduler
    table_width: int  # pages of the longest sequence
    banned: np.ndarray  # bool [V]
    programs: Programs

    def __post_init__(self) -> None:
        self.state = self.new_state()
        self.launches = 0
        self.decode_steps = 0
        self.generated = 0

    def add(self, request: Request) -> None:
        """Queues a request; RequestError if it could never run."""
        request.arrived = time.monotonic()
        self.scheduler.add(request)

    def abort(self, request: Request) -> None:
        """Forgets a request, finished or not."""
        self.scheduler.finish(request)

    def step(self, streaming: bool) -> None:
        """Admits and prefills what fits, then runs one decode launch, which extends the running requests.

        Args:
          streaming: somebody reads along: shorter launches.

        Raises:
          EngineError: the launch failed on the device. Its requests are finished with an error, the state is new, and the
            engine can go on.
        """
        with self._launching():
            for request in self.scheduler.admit():
                self._prefill(request)
            running = list(self.scheduler.running)
            if running:
                self._decode(running, streaming)

    @contextmanager
    def _launching(self) -> Iterator[None]:
        """Whatever ends a launch early, Ctrl-C included, leaves an empty state and nothing in flight."""
        try:
            yield
        except BaseException as failure:
            lost, message = len(self.scheduler.running), (str(failure).splitlines() or [""])[0]
            self._reset(message or type(failure).__name__)
            if not isinstance(failure, jax.errors.JaxRuntimeError):
                raise
            raise EngineError(
                f"a launch failed on the device, {lost} running requests were lost: {message}. "
                "The engine has an empty state again and takes new requests."
            ) from failure

    def _reset(self, reason: str) -> None:
        """The state was donated, or is ahead of the requests: fails what is in flight and starts from an empty state."""
        for request in list(self.scheduler.running):
            request.finish_reason, request.error = "error", f"a launch was lost: {reason}"
            self.scheduler.finish(request)
        for buffer in jax.tree.leaves(self.state):
            buffer.delete()  # before the new one takes the same memory
        self.state = self.new_state()

    # Prefill

    def _prefill(self, request: Request) -> None:
        wanted = request.params.prompt_logprobs
        penalised = np.array([request.sampling.penalised])
        for start, count in self.buckets.chunks(len(request.prompt) - 1):
            batch = self._prompt_batch(request, start, count)
            if wanted is None:
                self.state, _ = self._run(
                    ("prefill", batch.tokens.shape[1]), prefill, (batch, penalised)
                )
                continue
            k = 0 if wanted == 0 else _SCORES[-1]
            targets = np.zeros_like(batch.tokens)
            targets[0, :count] = request.prompt[start + 1 : start + count + 1]
            key = ("prefill scored", batch.tokens.shape[1], k)
            self.state, scores = self._run(
                key, partial(prefill_scored, k=k), (batch, penalised, targets)
            )
            request.prompt_scores.extend(_host_scores(scores, count, wanted))

    def _prompt_batch(self, request: Request, start: int, count: int) -> StepBatch:
        tokens = np.zeros((1, self.buckets.tokens_for(count)), np.int32)
        tokens[0, :count] = request.prompt[start : start + count]
        return StepBatch(
            tokens=operand(tokens),
            start=operand([start]),
            count=operand([count]),
            slots=operand([request.slot]),
            table=self._tables([request], 1),
        )

    def _tables(self, requests: Sequence[Request], rows: int) -> Array:
        table = np.zeros((rows, self.table_width), np.int32)
        for row, request in enumerate(requests):
            table[row, : len(request.pages)] = request.pages
        return operand(table)

    # Decode

    def _decode(self, running: list[Request], streaming: bool) -> None:
        rows = self.buckets.rows_for(len(running))
        wanted = max(
            (r.params.logprobs for r in running if r.params.logprobs is not None), default=None
        )
        k = next(s for s in _SCORES if wanted is None or (s is not None and s >= wanted))
        launch = self._launch(running, rows, k, self._steps(running, streaming))
        counts, tokens, status, scores = jax.device_get(
            (launch.count, launch.tokens, launch.rows.status, launch.scores)
        )
        now = time.monotonic()
        self.launches += 1
        self.decode_steps += int(counts.max())
        self.generated += int(counts.sum())
        for row, request in enumerate(running):
            self._extend(request, row, int(counts[row]), tokens, int(status[row]), scores, now)

    def _steps(self, running: list[Request], streaming: bool) -> int:
        if any(not r.tokens for r in running):
            return 1  # the first token as soon as it is there, and its time is its own
        longest = max(r.budget for r in running)
        limit = _SHORT_LAUNCH if streaming or self.scheduler.waiting else self.options.launch_steps
        return max(1, min(longest, limit))

    def _launch(self, running: list[Request], rows: int, k: int | None, steps: int) -> Launch:
        def column(values: list[int], padding: int = 0) -> Array:
            return operand(values + [padding] * (rows - len(running)))

        operands = (
            DecodeRows(
                token=column([r.next_input for r in running]),
                position=column([r.position for r in running]),
                budget=column([r.budget for r in running]),
                status=column([RUNNING for _ in running], STOPPED),
                slots=column([r.slot for r in running]),
                table=self._tables(running, rows),
            ),
            stack_rows([r.sampling for r in running], rows),
            self.banned,
            np.int32(steps),
        )
        self.state, launch = self._run(("decode", rows, k), partial(decode, k=k), operands)
        return launch

    def _run(self, key: tuple, function: Callable, operands: tuple) -> Any:
        def build() -> Callable:
            return partial(function, options=self.options)

        return self.programs.call(key, build, (self.params, self.state, *operands))

    def _extend(
        self, request: Request, row: int, count: int, tokens: np.ndarray, status: int,
        scores: TokenScores | None, now: float,
    ) -> None:  # fmt: skip
        new = [int(t) for t in tokens[:count, row]]
        request.tokens.extend(new)
        request.rounds += count
        if new and not request.first_token:
            request.first_token = now
        request.last_token = now
        if scores is not None and request.params.logprobs is not None:
            own = jax.tree.map(lambda a: a[:, row], scores)
            request.scores.extend(_host_scores(own, count, request.params.logprobs))
        self._note_end(request, status)

    def _note_end(self, request: Request, status: int) -> None:
        if status == RUNNING:
            return
        if status == UNHEALTHY:
            request.error = (
                f"the logits of token {len(request.tokens)} hold NaN or infinity: the checkpoint or the compute dtype "
                f"{self.options.forward.dtype} is at fault; try dtype='float32'."
            )
        reasons = {STOPPED: "stop", LENGTH: "length", UNHEALTHY: "error"}
        request.finish_reason = reasons[status]  # type: ignore[assignment]
        self.scheduler.finish(request)

    # Warm-up

    def warm_up(self, progress: Callable[[str, int, int], None] = lambda *_: None) -> None:
        """Compiles every program of the plain profile: all prefill and decode buckets without scores.

        Args:
          progress: called with (what, done, total) before each.
        """
        with self._launching():
            self._compile_all(progress)

    def _compile_all(self, progress: Callable[[str, int, int], None]) -> None:
        total = len(self.buckets.prefill_tokens) + len(self.buckets.decode_rows)
        for done, size in enumerate(self.buckets.prefill_tokens):
            progress(f"prefill of {size} tokens", done, total)
            self.state, _ = self._run(("prefill", size), prefill, self._padding_batch(size))
        for done, rows in enumerate(
            self.buckets.decode_rows, start=len(self.buckets.prefill_tokens)
        ):
            progress(f"decode of {rows} rows", done, total)
            self._launch([], rows, None, 0)
        progress("ready", total, total)

    def _padding_batch(self, size: int) -> tuple[StepBatch, np.ndarray]:
        """A prefill of nothing."""
        zero = operand([0])
        batch = StepBatch(operand([[0] * size]), zero, zero, zero, self._tables([], 1))
        return batch, np.array([False])


def operand(values: Any) -> Array:
    """Host integers for a program: NumPy, typed as the device array that the call makes of it."""
    return cast(Array, np.asarray(values, np.int32))


def _host_scores(scores: TokenScores, count: int, k: int) -> list[Score]:
    """The first `count` entries [.., ...] of device scores, with k likeliest tokens each."""
    logprob, rank, ids, values = jax.device_get(
        (scores.logprob, scores.rank, scores.top_ids, scores.top_logprobs)
    )
    return [
        Score(
            float(logprob[i]),
            int(rank[i]),
            tuple(int(t) for t in ids[i, :k]),
            tuple(float(v) for v in values[i, :k]),
        )
        for i in range(count)
    ]
