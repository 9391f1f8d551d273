"""The tokenizer of a checkpoint: text to ids and back, control tokens, ids that must not be sampled."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from onecat_jax.errors import CheckpointError, RequestError
from onecat_jax.json_files import read_optional_json
from onecat_jax.sampling_params import MAX_STOP_IDS
from onecat_jax.text.byte_level import token_bytes

# Placeholders that a model reads but never writes.
_MASK_TOKENS = ("<|mask|>", "<|MASK|>", "[MASK]", "<mask>")
_NAMED_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)


class Tokenizer:
    """A byte-level BPE tokenizer read from tokenizer.json and its companions.

    Attributes:
      vocab_size: one more than the largest id that has a token.
      special_ids: control tokens, left out of text unless asked for.
      eos_ids: ids that end a generation: those of generation_config.json and the eos_token of tokenizer_config.json
        (config.json's only if neither names one), without repeats.
      special_tokens: the tokens that tokenizer_config.json names, such as {"eos_token": "<|im_end|>"}.
      config: tokenizer_config.json, empty if there is none.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        config: Mapping[str, Any] | None = None,
        generation_config: Mapping[str, Any] | None = None,
        model_config: Mapping[str, Any] | None = None,
    ) -> None:
        self._backend = backend
        self.config = dict(config or {})
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self._ids = vocabulary
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        added = backend.get_added_tokens_decoder()
        self._added = {index: token.content for index, token in added.items()}
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self.special_tokens = _named_tokens(self.config)
        self.eos_ids = self._end_ids(generation_config or {}, model_config or {})
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_directory(cls, directory: str | Path) -> "Tokenizer":
        """Reads tokenizer.json, tokenizer_config.json, generation_config.json and config.json of a checkpoint.

        Raises:
          CheckpointError: tokenizer.json is missing or unreadable, or isn't byte-level; another file isn't JSON.
        """
        folder = Path(directory)
        backend = _load_backend(folder / "tokenizer.json")
        return cls(
            backend,
            config=read_optional_json(folder / "tokenizer_config.json"),
            generation_config=read_optional_json(folder / "generation_config.json"),
            model_config=read_optional_json(folder / "config.json"),
        )

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; control tokens written in the text count as such.

        Raises:
          RequestError: the text isn't valid Unicode.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text isn't valid Unicode: an unpaired surrogate at character {error.start} (what bytes in another "
                "encoding become); correct or convert it."
            ) from error
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of a whole sequence; bytes that are no UTF-8 become U+FFFD. Ids without a token have no text."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token adds to a text; empty for an id without a token."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._read_bytes(token_id)
        return found

    def _read_bytes(self, token_id: int) -> bytes:
        piece = self._backend.id_to_token(token_id) if token_id >= 0 else None
        return b"" if piece is None else token_bytes(piece)

    def token_text(self, token_id: int) -> str:
        """One token on its own, for log probability tables; a part of a character shows as U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def token_id(self, token: str) -> int | None:
        """Id of a token by its exact content, None if there is no such token."""
        return self._ids.get(token)

    def banned_mask(self, size: int) -> np.ndarray:
        """Ids that must never be sampled: bool [size], True for ids without a token and for mask placeholders."""
        mask = np.ones(size, bool)
        mask[[index for index in self._ids.values() if index < size]] = False
        mask[[index for index in self._mask_ids if index < size]] = True
        return mask

    @cached_property
    def _mask_ids(self) -> tuple[int, ...]:
        names = (*_MASK_TOKENS, self.special_tokens.get("mask_token"))
        special = {self._added[index]: index for index in self.special_ids}
        return tuple({special[name] for name in names if name in special})

    def _end_ids(self, generation: Mapping[str, Any], model: Mapping[str, Any]) -> tuple[int, ...]:
        ids = _as_ids("generation_config.json", generation.get("eos_token_id"))
        named = self._ids.get(self.special_tokens.get("eos_token", ""))
        ids += () if named is None else (named,)
        if not ids:
            text = model.get("text_config")
            text = text if isinstance(text, Mapping) else model
            ids = _as_ids("config.json", text.get("eos_token_id"))
        ids = tuple(dict.fromkeys(ids))
        if len(ids) > MAX_STOP_IDS:
            raise CheckpointError(
                f"the checkpoint names {len(ids)} end-of-sequence ids; at most {MAX_STOP_IDS} are implemented: shorten "
                "eos_token_id of generation_config.json."
            )
        return ids


def _load_backend(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise CheckpointError(
            f"{path.parent} has no tokenizer.json; put the tokenizer files of the model (tokenizer.json, "
            "tokenizer_config.json) beside its weights."
        )
    try:
        text = path.read_text(encoding="utf-8")
        description = json.loads(text)
        backend = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the tokenizers library raises the bare class
        raise CheckpointError(f"{path} can't be read ({error}); fetch the file again.") from error
    kinds = _decoder_kinds(description.get("decoder") or {})
    if "ByteLevel" not in kinds:
        raise CheckpointError(
            f"{path} decodes with {', '.join(kinds) or 'nothing'}; only byte-level tokenizers are implemented."
        )
    return backend


def _decoder_kinds(decoder: Mapping[str, Any]) -> list[str]:
    if decoder.get("type") == "Sequence":
        return [kind for part in decoder["decoders"] for kind in _decoder_kinds(part)]
    return [decoder["type"]] if "type" in decoder else []


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name in _NAMED_TOKENS:
        value = config.get(name)
        content = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(content, str):
            found[name] = content
    return found


def _as_ids(file: str, value: Any) -> tuple[int, ...]:
    """One id, several or none; -1 is none too."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(index) is not int or not -1 <= index < 2**31 for index in ids):
        raise CheckpointError(
            f"{file}: eos_token_id is {str(value)[:60]}; a token id or a list of token ids is needed."
        )
    return tuple(index for index in ids if index >= 0)
