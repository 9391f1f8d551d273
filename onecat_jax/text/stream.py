"""The text of one sample while its tokens arrive: detokeniser and stop strings in one."""

from onecat_jax.sampling_params import SamplingParams
from onecat_jax.text.detokenizer import Detokenizer
from onecat_jax.text.stop_strings import Scan, StopScanner
from onecat_jax.text.tokenizer import Tokenizer


class TextStream:
    """Feeds tokens one by one; tells which text may be shown and when a stop string ended it.

    Attributes:
      text: everything released so far; after `finish`, or after a match, the final text.
      matched: the stop string that ended the text, or None.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._silent = not params.detokenize
        self._include = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=params.skip_special_tokens)
        self._scanner = StopScanner(params.stop_strings, include=self._include)
        self._count = 0
        self.text = ""
        self.matched: str | None = None

    def push(self, token_id: int, *, is_stop: bool = False) -> str:
        """Text released by one more token.

        Args:
          token_id: the token.
          is_stop: the token ends the request; its own text is left out unless include_stop_str_in_output.
        Returns:
          New text. If `matched` is set afterwards, the request ends with this token and nothing more may be pushed.
        """
        self._count += 1
        if self._silent or (is_stop and not self._include):
            return ""
        return self._release(self._detokenizer.push((token_id,)))

    def finish(self) -> str:
        """Releases what was held back; idempotent. Nothing is left after a match."""
        if self._silent or self.matched is not None:
            return ""
        released = self._release(self._detokenizer.finish())
        if self.matched is None:
            rest = self._scanner.finish()
            self.text += rest
            released += rest
        return released

    def _release(self, piece: str) -> str:
        # Text of the first min_tokens tokens can't stop the request, not even in part.
        scan = Scan(piece) if self._count <= self._min_tokens else self._scanner.push(piece)
        self.matched = scan.matched
        self.text += scan.text
        return scan.text
