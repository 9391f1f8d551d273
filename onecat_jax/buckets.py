"""The static shapes that programs are compiled for, declared in one place.

A prefill program takes one request's chunk, padded to a power of two of tokens; a decode program takes a power of two of
rows. Padding at most doubles the work. Chunk borders lie on a grid counted from the request's own position 0 and are multiples
of 64, so a request's chunks (and with them its bits) depend on the request alone. Prefill and decode exist a second time with
log probabilities.
"""

from dataclasses import dataclass

from onecat_jax.custom_calls.gdn import CHUNK

MAX_PROGRAMS = 16  # of a warmed profile
LAUNCH_ROUNDS = 32  # rounds of one launch at most; the actual number is an operand


def _powers(low: int, high: int) -> tuple[int, ...]:
    sizes = [low]
    while sizes[-1] * 2 <= high:
        sizes.append(sizes[-1] * 2)
    return tuple(sizes)


@dataclass(frozen=True)
class Buckets:
    """All program shapes of one engine."""

    prefill_tokens: tuple[int, ...]
    decode_rows: tuple[int, ...]
    widths: int = 1  # of rounds: each decode bucket exists so many times

    @staticmethod
    def plan(max_tokens: int, max_rows: int, min_rows: int, widths: int = 1) -> "Buckets":
        """Powers of two up to the limits; the largest decode bucket is exactly `max_rows` if that isn't a power of two.

        Args:
          max_tokens: the longest prefill chunk wanted; rounded down to a power of two times 64.
          max_rows: requests decoded together.
          min_rows: 2 where a program of one row would round differently from wider ones, also if max_rows is 1.
          widths: how many widths of rounds there are: one without drafts, and those of the drafters.
        """
        most = max(max_rows, min_rows)
        rows = _powers(min_rows, most)
        rows = rows if rows[-1] == most else (*rows, most)
        tokens = _powers(CHUNK, max(max_tokens, CHUNK))
        spare = MAX_PROGRAMS - widths * len(rows) - (rows[-1] > 1)
        return Buckets(tokens[-max(spare, 1) :], rows, widths)

    @property
    def scored_prefill_tokens(self) -> tuple[int, ...]:
        """Prefill buckets with log probabilities: without the smallest ones if the programs would become too many."""
        spare = MAX_PROGRAMS - self.programs - self._decode_programs
        return self.prefill_tokens[-spare:] if spare > 0 else self.prefill_tokens

    @property
    def programs(self) -> int:
        """Programs without log probabilities."""
        return len(self.prefill_tokens) + self._decode_programs + (self.forks > 0)

    @property
    def scored_programs(self) -> int:
        """Programs with log probabilities, which come on top."""
        return len(self.scored_prefill_tokens) + self._decode_programs

    @property
    def _decode_programs(self) -> int:
        return self.widths * len(self.decode_rows)

    @property
    def forks(self) -> int:
        """Sequences that may start from others in one call of the fork program; there is none for 0."""
        return self.decode_rows[-1] - 1

    @property
    def chunk(self) -> int:
        """Tokens of a full prefill chunk."""
        return self.prefill_tokens[-1]

    def tokens_for(self, count: int, scored: bool = False) -> int:
        """The smallest prefill bucket that holds `count` tokens."""
        sizes = self.scored_prefill_tokens if scored else self.prefill_tokens
        return next(size for size in sizes if size >= count)

    def rows_for(self, count: int) -> int:
        """The smallest decode bucket that holds `count` rows."""
        return next(size for size in self.decode_rows if size >= count)

    def chunks(self, prompt_tokens: int) -> list[tuple[int, int]]:
        """(start, length) of every prefill chunk of a prompt."""
        return [
            (start, min(self.chunk, prompt_tokens - start))
            for start in range(0, prompt_tokens, self.chunk)
        ]
