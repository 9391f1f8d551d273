"""Token ids to text, a few at a time, without ever splitting a character."""

import codecs
from collections.abc import Iterable

from onecat_jax.text.tokenizer import Tokenizer


class Detokenizer:
    """Turns a growing sequence of ids into text. Concatenated output equals one decode of all ids, whatever the cuts.

    Bytes of an unfinished UTF-8 character wait for the next ids; bytes that can't become a character are U+FFFD, as in a
    decode of the whole.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        """Text that the ids complete, possibly empty."""
        kept = [self._tokenizer.token_bytes(index) for index in ids if index not in self._skipped]
        return self._decoder.decode(b"".join(kept))

    def finish(self) -> str:
        """The end: U+FFFD for a character that was never completed, else nothing."""
        return self._decoder.decode(b"", final=True)
