"""The engine core: owns the device state, turns queued requests into launches, and hands back new tokens.

A request's last prompt token is never prefilled: it is the first row that the decode loop feeds, so every token, the first
included, is picked in one place.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from onecat_jax.buckets import MAX_PROGRAMS, Buckets
from onecat_jax.errors import EngineError, first_line
from onecat_jax.forks import fork
from onecat_jax.models.qwen3_5 import Params, StepBatch
from onecat_jax.operands import Operands, host_scores
from onecat_jax.programs import Programs
from onecat_jax.request import Request
from onecat_jax.sampling import stack_rows
from onecat_jax.sampling_params import MAX_LOGPROBS
from onecat_jax.scheduler import Admission, Scheduler
from onecat_jax.state import CacheState
from onecat_jax.steps import (
    LENGTH,
    RUNNING,
    STOPPED,
    UNHEALTHY,
    Launch,
    StepOptions,
    TokenScores,
    decode,
    prefill,
    prefill_scored,
)

_SHORT_LAUNCH = 8  # steps while somebody waits for the text or for a row


@dataclass
class Engine:
    """Single-threaded: one caller drives `step`. `abort` may come at any time, also while a step runs (a stream that nobody
    reads any more is collected).
    """

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
        self.operands = Operands(self.buckets, self.scheduler.pool.page_size, self.table_width)
        self.launches = 0
        self.decode_steps = 0
        self.generated = 0
        self.prefilled = 0  # prompt tokens
        self._busy = False  # inside a step
        self._left: list[Request] = []  # aborted meanwhile

    def add(self, request: Request) -> None:
        """Queues a request; RequestError if it could never run."""
        request.arrived = time.monotonic()
        self.scheduler.add(request)

    def abort(self, request: Request) -> None:
        """Forgets a request, finished or not. What it owns is free at once, or when the step that runs has ended."""
        if self._busy:
            self._left.append(request)
        else:
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
            self._start(self.scheduler.admit())
            running = list(self.scheduler.running)
            if running:
                self._decode(running, streaming)

    @contextmanager
    def _launching(self) -> Iterator[None]:
        """Whatever ends a launch early, Ctrl-C included, leaves an empty state and nothing in flight."""
        self._busy = True
        try:
            yield
        except BaseException as failure:
            lost, message = len(self.scheduler.running), first_line(failure)
            self._reset(message)
            if not isinstance(failure, jax.errors.JaxRuntimeError):
                raise
            raise EngineError(
                f"a launch failed on the device, {lost} running requests were lost: {message}. "
                "The engine has an empty state again and takes new requests."
            ) from failure
        finally:
            self._busy = False
            while self._left:
                self.scheduler.finish(self._left.pop())

    def _reset(self, reason: str) -> None:
        """The state was donated, or is ahead of the requests: fails what is in flight and starts from an empty state."""
        for request in list(self.scheduler.running):
            request.finish_reason, request.error = "error", f"a launch was lost: {reason}"
            self.scheduler.finish(request)
        for buffer in jax.tree.leaves(self.state):
            buffer.delete()  # before the new one takes the same memory
        self.state = self.new_state()

    # Prefill

    def _start(self, admitted: list[Admission]) -> None:
        """Prefills those without a leader, then lets the others start from their leaders before these move on."""
        for admission in admitted:
            if admission.leader is None:
                self._prefill(admission.request)
            else:
                admission.request.cached = admission.request.position
        if any(admission.leader for admission in admitted):
            self._fork(admitted)

    def _fork(self, admitted: list[Admission]) -> None:
        self.state, _ = self._run(("fork",), fork, (self.operands.forks(admitted),))

    def _prefill(self, request: Request) -> None:
        wanted = request.params.prompt_logprobs
        penalised = np.array([request.sampling.penalised])
        for start, count in self.buckets.chunks(request.position):
            batch = self.operands.prompt_chunk(request, start, count, wanted is not None)
            if wanted is None:
                self._prefill_plain(batch, penalised)
            else:
                targets = np.zeros_like(batch.tokens)
                targets[0, :count] = request.prompt[start + 1 : start + count + 1]
                scores = self._prefill_scored(batch, penalised, targets)
                request.prompt_scores.extend(host_scores(scores, count, wanted))
            self.prefilled += count

    def _prefill_plain(self, batch: StepBatch, penalised: np.ndarray) -> None:
        key = ("prefill", batch.tokens.shape[1])
        self.state, _ = self._run(key, prefill, (batch, penalised))

    def _prefill_scored(
        self, batch: StepBatch, penalised: np.ndarray, targets: np.ndarray
    ) -> TokenScores:
        key = ("prefill scored", batch.tokens.shape[1])
        step = partial(prefill_scored, k=MAX_LOGPROBS)
        self.state, scores = self._run(key, step, (batch, penalised, targets))
        return scores

    # Decode

    def _decode(self, running: list[Request], streaming: bool) -> None:
        scored = any(r.params.logprobs is not None for r in running)
        rows = self.buckets.rows_for(len(running))
        launch = self._launch(running, rows, scored, self._steps(running, streaming))
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

    def _launch(self, running: list[Request], rows: int, scored: bool, steps: int) -> Launch:
        operands = (
            self.operands.decode_rows(running, rows),
            stack_rows([r.sampling for r in running], rows),
            self.banned,
            np.int32(steps),
        )
        step = partial(decode, k=MAX_LOGPROBS if scored else None)
        key = ("decode scored" if scored else "decode", rows)
        self.state, launch = self._run(key, step, operands)
        return launch

    def _run(self, key: tuple, function: Callable, operands: tuple) -> Any:
        step = partial(function, options=self.options)
        return self.programs.call(key, step, (self.params, self.state, *operands))

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
            request.scores.extend(host_scores(own, count, request.params.logprobs))
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

    def warm_up(
        self, scores: bool = False, progress: Callable[[str, int, int], None] = lambda *_: None
    ) -> None:
        """Compiles every program of the plain profile: all buckets of prefill and decode, and the fork.

        Args:
          scores: those with log probabilities too.
          progress: called with (what, done, total) before each.

        Raises:
          EngineError: with scores the programs would be too many.
        """
        total = self.buckets.programs + (self.buckets.scored_programs if scores else 0)
        if total > MAX_PROGRAMS:
            raise EngineError(
                f"warming up log probabilities too makes {total} programs, at most {MAX_PROGRAMS} are compiled ahead: lower "
                "max_num_seqs or max_num_batched_tokens, or leave them to be compiled when they are first asked for."
            )
        with self._launching():
            for done, (what, compile_one) in enumerate(self._profile(scores)):
                progress(what, done, total)
                compile_one()
        progress("ready", total, total)

    def _profile(self, scores: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Every program's name and a call of it that does nothing."""
        nobody = np.array([False])
        for size in self.buckets.prefill_tokens:
            batch = self.operands.no_chunk(size)
            yield f"prefill of {size} tokens", partial(self._prefill_plain, batch, nobody)
        for size in self.buckets.scored_prefill_tokens if scores else ():
            batch = self.operands.no_chunk(size)
            scored = partial(self._prefill_scored, batch, nobody, np.zeros_like(batch.tokens))
            yield f"prefill of {size} tokens with scores", scored
        if self.buckets.forks:
            yield "fork", partial(self._fork, [])
        for rows in self.buckets.decode_rows:
            yield f"decode of {rows} rows", partial(self._launch, [], rows, False, 0)
            if scores:
                yield f"decode of {rows} rows with scores", partial(self._launch, [], rows, True, 0)
