"""What programs are called with: host arrays made from requests, padded to a bucket. And scores on their way back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np
from jax import Array

from onecat_jax.buckets import Buckets
from onecat_jax.forks import Forks
from onecat_jax.models.qwen3_5 import StepBatch
from onecat_jax.request import Request, Score
from onecat_jax.scheduler import Admission
from onecat_jax.speculation.pace import NO_PACING, Pace
from onecat_jax.speculation.rounds import RUNNING, STOPPED, RoundRows
from onecat_jax.steps import Chunk, TokenScores


@dataclass(frozen=True)
class Operands:
    """Makes the operands of one engine's programs."""

    buckets: Buckets
    page_size: int
    table_width: int  # pages of the longest sequence

    def prompt_chunk(self, request: Request, start: int, count: int, scored: bool) -> Chunk:
        """`count` prompt tokens from `start` on; there is one more behind them."""
        size = self.buckets.tokens_for(count, scored)
        tokens, following = np.zeros((2, 1, size), np.int32)
        tokens[0, :count] = request.prompt[start : start + count]
        following[0, :count] = request.prompt[start + 1 : start + count + 1]
        batch = StepBatch(
            tokens=operand(tokens),
            start=operand([start]),
            count=operand([count]),
            slots=operand([request.slot]),
            table=self._tables([request], 1),
        )
        penalised = np.array([request.sampling.penalised])
        return Chunk(batch, operand(following), cast(Array, penalised))

    def no_chunk(self, size: int) -> Chunk:
        """A prefill of nothing in the bucket of `size` tokens."""
        zero, tokens = operand([0]), operand([[0] * size])
        batch = StepBatch(tokens, zero, zero, zero, self._tables([], 1))
        return Chunk(batch, tokens, cast(Array, np.array([False])))

    def round_rows(self, running: Sequence[Request], rows: int) -> RoundRows:
        """The running requests, padded to `rows`."""

        def column(values: list[int], padding: int = 0) -> Array:
            return operand(values + [padding] * (rows - len(values)))

        return RoundRows(
            token=column([r.next_input for r in running]),
            position=column([r.position for r in running]),
            budget=column([r.budget for r in running]),
            status=column([RUNNING for _ in running], STOPPED),
            pace=self._paces(running, rows),
            slots=column([r.slot for r in running]),
            table=self._tables(running, rows),
        )

    def _paces(self, running: Sequence[Request], rows: int) -> Pace:
        nobody = [Pace.start(np.int32(0), NO_PACING)] * (rows - len(running))
        return jax.tree.map(lambda *each: operand(each), *[r.pace for r in running], *nobody)

    def forks(self, admitted: Sequence[Admission]) -> Forks:
        """Who starts from whom: those of the admitted that have a leader."""
        size = self.buckets.forks
        slots, pages = np.zeros((2, size, 2), np.int32)
        filled = np.zeros(size, np.int32)
        pairs = [(a.leader, a.request) for a in admitted if a.leader is not None]
        for at, pair in enumerate(pairs):
            full, filled[at] = divmod(pair[1].position, self.page_size)
            slots[at] = [request.slot for request in pair]
            if filled[at]:
                pages[at] = [request.pages[full] for request in pair]
        return Forks(operand(len(pairs)), operand(slots), operand(pages), operand(filled))

    def _tables(self, requests: Sequence[Request], rows: int) -> Array:
        table = np.zeros((rows, self.table_width), np.int32)
        for row, request in enumerate(requests):
            table[row, : len(request.pages)] = request.pages
        return operand(table)


def operand(values: Any) -> Array:
    """Host integers for a program: NumPy, typed as the device array that the call makes of it."""
    return cast(Array, np.asarray(values, np.int32))


def host_scores(scores: TokenScores, count: int, k: int) -> list[Score]:
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
