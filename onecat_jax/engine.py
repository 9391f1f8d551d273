"""The engine core: owns the device state, turns queued requests into launches, and hands back new tokens.

A request's last prompt token is never prefilled: it is the first row that the decode loop feeds, so every token, the first
included, is picked in one place.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import jax
import numpy as np

from onecat_jax.buckets import MAX_PROGRAMS, Buckets
from onecat_jax.errors import EngineError, first_line
from onecat_jax.forks import fork
from onecat_jax.operands import Operands, host_scores
from onecat_jax.programs import Programs
from onecat_jax.request import Request, Round
from onecat_jax.sampling import stack_rows
from onecat_jax.sampling_params import MAX_LOGPROBS
from onecat_jax.scheduler import Admission, Scheduler
from onecat_jax.speculation.launch import Launch, launch
from onecat_jax.speculation.pace import Pace
from onecat_jax.speculation.params import EngineParams
from onecat_jax.speculation.rounds import LENGTH, RUNNING, STOPPED, UNHEALTHY
from onecat_jax.speculation.statistics import Statistics
from onecat_jax.state import CacheState
from onecat_jax.steps import Chunk, StepOptions, TokenScores, prefill, prefill_scored

_SHORT_LAUNCH = 8  # rounds without drafts while somebody waits for the text or for a row
_SHORT_ROUNDS = 4  # rounds with drafts then


@dataclass
class Engine:
    """Single-threaded: one caller drives `step`. `abort` may come at any time, also while a step runs (a stream that nobody
    reads any more is collected).
    """

    params: EngineParams
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
        self.statistics = Statistics()
        self.prefilled = 0  # prompt tokens
        self._busy = False  # inside a step
        self._left: list[Request] = []  # aborted meanwhile

    def pace(self, drafts: int | None) -> Pace:
        """Of a new request that asks for so many drafts per round at most, or leaves it to the engine."""
        most = self.options.widths[-1] - 1
        wanted = most if drafts is None else min(drafts, most)
        return Pace.start(np.int32(wanted), self.options.pacing)

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
        for start, count in self.buckets.chunks(request.position):
            chunk = self.operands.prompt_chunk(request, start, count, wanted is not None)
            if wanted is None:
                self._prefill_plain(chunk)
            else:
                scores = self._prefill_scored(chunk)
                request.prompt_scores.extend(host_scores(scores, count, wanted))
            self.prefilled += count

    def _prefill_plain(self, chunk: Chunk) -> None:
        key = ("prefill", chunk.next_tokens.shape[1])
        self.state, _ = self._run(key, prefill, (chunk,))

    def _prefill_scored(self, chunk: Chunk) -> TokenScores:
        key = ("prefill scored", chunk.next_tokens.shape[1])
        step = partial(prefill_scored, k=MAX_LOGPROBS)
        self.state, scores = self._run(key, step, (chunk,))
        return scores

    # Decode

    def _decode(self, running: list[Request], streaming: bool) -> None:
        scored = any(r.params.logprobs is not None for r in running)
        rows = self.buckets.rows_for(len(running))
        width = self._width(running)
        begin, compiling = time.monotonic(), self.programs.compile_seconds
        done = self._launch(running, rows, width, scored, self._rounds(running, streaming, width))
        rounds, status, pace = jax.device_get((done.rounds, done.rows.status, done.rows.pace))
        now = time.monotonic()
        compiling = self.programs.compile_seconds - compiling
        self.statistics.add_launch(rounds, width, now - begin - compiling)
        for row, request in enumerate(running):
            request.pace = _row(pace, row)
            self._extend(request, _row(rounds, (slice(None), row)), now)
            self._note_end(request, int(status[row]))

    def _width(self, running: list[Request]) -> int:
        """The narrowest rounds that hold what every request wants; see `launch.suits`."""
        most = 1 + max(int(r.pace.wanted(self.options.pacing)) for r in running)
        return next(width for width in self.options.widths if width >= most)

    def _rounds(self, running: list[Request], streaming: bool, width: int) -> int:
        if any(not r.tokens for r in running):
            return 1  # the first token as soon as it is there, and its time is its own
        longest = max(r.budget for r in running)
        short = _SHORT_LAUNCH if width == 1 else _SHORT_ROUNDS
        waited = streaming or bool(self.scheduler.waiting)
        return max(1, min(longest, short if waited else self.options.launch_rounds))

    def _launch(
        self, running: list[Request], rows: int, width: int, scored: bool, rounds: int
    ) -> Launch:
        operands = (
            self.operands.round_rows(running, rows),
            stack_rows([r.sampling for r in running], rows),
            self.banned,
            np.int32(rounds),
        )
        step = partial(launch, width=width, k=MAX_LOGPROBS if scored else None)
        key = ("decode scored" if scored else "decode", rows, width)
        self.state, done = self._run(key, step, operands)
        return done

    def _run(self, key: tuple, function: Callable, operands: tuple) -> Any:
        step = partial(function, options=self.options)
        return self.programs.call(key, step, (self.params, self.state, *operands))

    def _extend(self, request: Request, rounds: Any, now: float) -> None:
        """Takes what a launch gave one request: arrays [R, ...]."""
        ran = rounds.count > 0
        delivered = rounds.tokens >= 0  # [R, Q]
        new = [int(t) for t in rounds.tokens[delivered]]
        request.tokens.extend(new)
        verified = zip(rounds.drafted[ran], rounds.accepted[ran], strict=True)
        request.rounds.extend(Round(int(drafted), int(accepted)) for drafted, accepted in verified)
        if new and not request.first_token:
            request.first_token = now
        request.last_token = now
        if rounds.scores is not None and request.params.logprobs is not None:
            own = jax.tree.map(lambda a: a[delivered], rounds.scores)
            request.scores.extend(host_scores(own, len(new), request.params.logprobs))

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
        for size in self.buckets.prefill_tokens:
            chunk = self.operands.no_chunk(size)
            yield f"prefill of {size} tokens", partial(self._prefill_plain, chunk)
        for size in self.buckets.scored_prefill_tokens if scores else ():
            chunk = self.operands.no_chunk(size)
            yield f"prefill of {size} tokens with scores", partial(self._prefill_scored, chunk)
        if self.buckets.forks:
            yield "fork", partial(self._fork, [])
        for rows, width in product(self.buckets.decode_rows, self.options.widths):
            what = f"decode of {rows} rows" + (f" with {width - 1} drafts" if width > 1 else "")
            yield what, partial(self._launch, [], rows, width, False, 0)
            if scores:
                yield f"{what} with scores", partial(self._launch, [], rows, width, True, 0)


def _row(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda a: a[index], tree)
