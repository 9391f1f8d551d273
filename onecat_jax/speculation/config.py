"""`speculative_config`: the keys of vLLM's, checked once."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from onecat_jax.checks import flag, member, number, refused, whole
from onecat_jax.errors import EngineError, shown

Method = Literal["dflash", "mtp", "ngram"]
METHODS = ("dflash", "mtp", "ngram")
_ALIASES = {
    "dflash2": "dflash",
    "qwen3_5_mtp": "mtp",
    "qwen3_next_mtp": "mtp",
    "lookup": "ngram",
    "[ngram]": "ngram",
}
MAX_DRAFTS = 15  # rounds of up to 16 rows take the operators of decode rows
_DEFAULT_DRAFTS = {"mtp": 3, "ngram": 7}
_KV_DTYPES = ("auto", "float32", "float16", "fp8_e4m3", "fp8_e5m2")
_SAMPLE_METHODS = ("probabilistic", "greedy")
_NO_MEANING = ("attention_backend", "enforce_eager", "draft_tensor_parallel_size")
_KEY = "speculative_config"
_LOOKUP = ("prompt_lookup_min", "prompt_lookup_max")


@dataclass(frozen=True)
class SpeculativeConfig:
    """Who drafts, and how much.

    Attributes:
      method: "dflash" (a draft checkpoint of DFlash or DFlash2), "mtp" (the checkpoint's own head) or "ngram" (lookup in the
        text so far).
      model: folder or Hub name of the draft; needed by dflash, except for the embedded model, which has one.
      revision: of a Hub name.
      num_speculative_tokens: drafts per round, at most MAX_DRAFTS; None takes as many as the draft checkpoint was made for, 3
        for mtp, 7 for ngram.
      kv_cache_dtype: storage of a draft model's keys and values, whatever the target's is; auto is the compute dtype.
      draft_sample_method: "probabilistic" draws drafts from their distribution where a request samples; "greedy" always takes
        the likeliest.
      prompt_lookup_min, prompt_lookup_max: tokens that must match before something is copied, and as many as are compared.
      adaptive_lookup: around dflash: copy from the text so far where it repeats, in rounds of up to 15 drafts while that lasts.
      min_acceptance_length: a request whose rounds bring fewer tokens than this in the mean drafts nothing for a while; 0: off.

    Raises:
      EngineError: a key or value that isn't known, with what is.
    """

    method: Method
    model: str | None = None
    revision: str | None = None
    num_speculative_tokens: int | None = None
    kv_cache_dtype: str = "auto"
    draft_sample_method: Literal["probabilistic", "greedy"] = "probabilistic"
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    adaptive_lookup: bool = False
    min_acceptance_length: float = 1.2

    def __post_init__(self) -> None:
        member(f"{_KEY}: method", self.method, METHODS)
        member(f"{_KEY}: kv_cache_dtype", self.kv_cache_dtype, _KV_DTYPES)
        member(f"{_KEY}: draft_sample_method", self.draft_sample_method, _SAMPLE_METHODS)
        for name in ("model", "revision"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise refused(f"{_KEY}: {name}", value, "a text is needed")
        for name, most in (("num_speculative_tokens", MAX_DRAFTS), *((n, 64) for n in _LOOKUP)):
            if getattr(self, name) is not None:
                whole(f"{_KEY}: {name}", getattr(self, name), 1, most)
        flag(f"{_KEY}: adaptive_lookup", self.adaptive_lookup)
        number(f"{_KEY}: min_acceptance_length", self.min_acceptance_length, 0, MAX_DRAFTS + 1)
        self._check_method()

    def _check_method(self) -> None:
        """Keys that only other methods know."""
        wrong = []
        if self.method != "dflash":
            wrong += [n for n in ("model", "revision", "adaptive_lookup") if getattr(self, n)]
            wrong += ["kv_cache_dtype"] if self.kv_cache_dtype != "auto" else []
        if self.method != "ngram":
            wrong += [n for n in _LOOKUP if getattr(self, n) is not None]
        if wrong:
            raise EngineError(
                f"speculative_config: {wrong[0]} has no meaning for method {self.method!r}; leave it out."
            )
        if self.revision and not self.model:
            raise EngineError(
                f"speculative_config: revision is {self.revision!r} but there is no model; name the draft that it is of, "
                "or leave it out."
            )
        if self.least_match > self.most_match:
            raise EngineError(
                f"speculative_config: prompt_lookup_min is {self.least_match}, prompt_lookup_max {self.most_match}; "
                "the first must not be larger."
            )

    @property
    def least_match(self) -> int:
        """Tokens that must match before something is copied."""
        return self.prompt_lookup_min or self.prompt_lookup_max or 5

    @property
    def most_match(self) -> int:
        """Tokens that are compared at most."""
        return self.prompt_lookup_max or max(self.least_match, 5)

    def drafts(self, own: int | None = None) -> int:
        """Drafts per round.

        Args:
          own: what the draft checkpoint was made for.

        Raises:
          EngineError: more than that were asked for.
        """
        asked = self.num_speculative_tokens
        if own is None:
            return asked or _DEFAULT_DRAFTS[self.method]
        if asked is not None and asked > own:
            raise EngineError(
                f"num_speculative_tokens is {asked}; the draft checkpoint makes {own} in a round: ask for {own} or fewer."
            )
        return asked or min(own, MAX_DRAFTS)

    @staticmethod
    def from_mapping(given: Mapping[str, Any]) -> "SpeculativeConfig":
        """Reads the value of `speculative_config`."""
        if not isinstance(given, Mapping):
            raise EngineError(
                f"speculative_config is {shown(given)}; an object such as {{'method': 'dflash'}} is needed."
            )
        known = [f.name for f in fields(SpeculativeConfig)]
        unknown = sorted({str(key) for key in given if key not in (*known, *_NO_MEANING)})
        if unknown:
            raise EngineError(
                f"speculative_config: unknown key {shown(unknown[0])}; known: {', '.join(known)}."
            )
        if "method" not in given:
            raise EngineError(
                f"speculative_config has no method; one of {', '.join(METHODS)} is needed."
            )
        values = {name: value for name, value in given.items() if name in known}
        method = values["method"]
        values["method"] = _ALIASES.get(method, method) if isinstance(method, str) else method
        if isinstance(values.get("model"), os.PathLike):
            values["model"] = os.fspath(values["model"])
        return SpeculativeConfig(**values)


def without_meaning(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys that are accepted for the sake of launch commands and mean nothing here."""
    return tuple(name for name in _NO_MEANING if name in given)
