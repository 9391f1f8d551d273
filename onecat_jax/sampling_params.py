"""Settings of one generation request, with vLLM's field names."""

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onecat_jax.errors import RequestError, shown

MAX_LOGPROBS = 20
MAX_STOP_IDS = 16  # stop_token_ids and the model's end-of-sequence ids together
MAX_SAMPLES = 64
MAX_LOGIT_BIAS = 300  # as in the OpenAI API
_DRAFTS = "num_speculative_tokens"
_GENERATION_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are picked and when a request ends. Checked on construction.

    Attributes:
      temperature: 0 = greedy (the likeliest token, ties to the lowest id).
      top_p: keeps a token while the mass ranked before it is below top_p.
      top_k: keeps exactly this many tokens; 0 or -1 = all.
      min_p: drops tokens less likely than min_p times the likeliest.
      seed: 64 bits, the whole source of randomness of this request; None (or -1) = chosen by the engine.
      max_tokens: new tokens at most; None = up to the model length.
      min_tokens: stop ids aren't sampled and stop strings aren't looked for before this many tokens.
      stop: strings that end the text; stored as a tuple.
      stop_token_ids: ids that end the request besides the model's own; stored as a tuple.
      ignore_eos: go on past the model's end-of-sequence ids.
      n: independent samples of the same prompt; see `samples`.
      logprobs: None, or how many of the likeliest tokens to report next to the chosen one.
      prompt_logprobs: the same for the tokens of the prompt.
      presence_penalty: taken off the logit of every token generated before, -2 to 2.
      frequency_penalty: taken off as many times as the token was generated, -2 to 2.
      repetition_penalty: divides positive and multiplies negative logits of tokens in the prompt or generated before; above 0,
        1 = off.
      logit_bias: token id (an integer or its digits) to a number from -100 to 100 that is added to its logit, at most
        MAX_LOGIT_BIAS of them; stored as a tuple of (id, bias) in the order of the ids.
      skip_special_tokens: leave control tokens out of the text.
      include_stop_str_in_output: keep the stop string, or the text of the stop token, at the end of the text.
      detokenize: False = token ids only, text stays empty.
      extra_args: {"num_speculative_tokens": n}: drafts per round for this request, 0 for none; at most what the engine drafts.
        Stored as a tuple of pairs.
    Raises:
      RequestError: a value of the wrong type or out of range; the message names the field, the value and the range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int | str, float] | Sequence[tuple[int | str, float]] | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    detokenize: bool = True
    extra_args: Mapping[str, Any] | Sequence[tuple[str, Any]] | None = None

    def __post_init__(self) -> None:
        self._check_distribution()
        self._check_length()
        self._check_reports()
        self._check_flags()
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        object.__setattr__(self, "stop_token_ids", _stop_token_ids(self.stop_token_ids))
        object.__setattr__(self, "logit_bias", _logit_bias(self.logit_bias))
        object.__setattr__(self, "extra_args", _extra_args(self.extra_args))
        if self.seed is not None:  # Python's own integer: NumPy's overflow in 64-bit arithmetic
            object.__setattr__(self, "seed", None if self.seed == -1 else int(self.seed))
        if self.stop and not self.detokenize:
            raise RequestError(
                "stop strings need the text, but detokenize is False: set detokenize=True or use stop_token_ids."
            )

    def _check_distribution(self) -> None:
        _number("temperature", self.temperature, 0.0, math.inf)
        _number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _integer("top_k", self.top_k, -1, 2**31 - 1)
        _number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _integer("seed", self.seed, -(2**63), 2**64 - 1)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, math.inf, open_low=True)

    def _check_length(self) -> None:
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _integer("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens is {self.min_tokens} but max_tokens is {self.max_tokens}; need min_tokens <= max_tokens."
            )
        _integer("n", self.n, 1, MAX_SAMPLES)

    def _check_reports(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), 0, MAX_LOGPROBS)

    def _check_flags(self) -> None:
        names = ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "detokenize")
        for name in names:
            if not isinstance(getattr(self, name), bool):
                raise RequestError(
                    f"{name} must be True or False, got {shown(getattr(self, name))}."
                )

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings, an empty tuple if there are none."""
        return self.stop  # type: ignore[return-value]  # normalised in __post_init__

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The extra stop token ids, an empty tuple if there are none."""
        return self.stop_token_ids  # type: ignore[return-value]  # normalised in __post_init__

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """(token id, bias) in the order of the ids, an empty tuple if there are none."""
        return self.logit_bias  # type: ignore[return-value]  # normalised in __post_init__

    @property
    def drafts(self) -> int | None:
        """Drafts per round that this request asks for; None leaves it to the engine."""
        return dict(self.extra_args).get(_DRAFTS)  # type: ignore[arg-type]  # normalised in __post_init__

    def samples(self) -> tuple["SamplingParams", ...]:
        """One single-sample request per sample.

        The first keeps the seed and is the only one to score the prompt; the others get seeds derived from it.
        """
        return tuple(self._sample(i) for i in range(self.n))

    def _sample(self, index: int) -> "SamplingParams":
        seed = None if self.seed is None else derived_seed(self.seed, index)
        scored = self.prompt_logprobs if index == 0 else None
        return replace(self, n=1, seed=seed, prompt_logprobs=scored)

    @classmethod
    def from_generation_config(
        cls, config: Mapping[str, Any], **overrides: Any
    ) -> "SamplingParams":
        """Defaults of a checkpoint: temperature, top_p, top_k, min_p and repetition_penalty of generation_config.json.

        do_sample false means greedy. Other keys are ignored. `overrides` are fields of this class and win.
        """
        values = {key: config[key] for key in _GENERATION_KEYS if config.get(key) is not None}
        if config.get("do_sample") is False:
            values["temperature"] = 0.0
        return cls(**{**values, **overrides})


def effective_stop_ids(params: SamplingParams, eos_ids: Sequence[int]) -> tuple[int, ...]:
    """All ids that end the request, in the order end-of-sequence ids, then stop_token_ids, without repeats.

    Raises:
      RequestError: more than MAX_STOP_IDS of them.
    """
    eos = () if params.ignore_eos else tuple(eos_ids)
    ids = tuple(dict.fromkeys(eos + params.stop_ids))
    if len(ids) > MAX_STOP_IDS:
        raise RequestError(
            f"stop_token_ids and the {len(eos)} end-of-sequence ids of the model make {len(ids)} stop ids; "
            f"at most {MAX_STOP_IDS} are allowed: remove {len(ids) - MAX_STOP_IDS}."
        )
    return ids


def check_vocabulary(params: SamplingParams, vocab_size: int) -> None:
    """Refuses biases of tokens that don't exist.

    Raises:
      RequestError: an id of logit_bias is vocab_size or more.
    """
    largest = params.biases[-1][0] if params.biases else -1
    if largest >= vocab_size:
        raise RequestError(
            f"logit_bias names token {largest}, but the vocabulary has {vocab_size} tokens: ids go from 0 to {vocab_size - 1}."
        )


def derived_seed(seed: int, index: int) -> int:
    """Seed of sample `index`: the seed itself for 0, else the SplitMix64 output at that distance from it."""
    mask = 2**64 - 1
    if index == 0:
        return seed & mask
    z = (seed + index * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def _extra_args(given: object) -> tuple[tuple[str, Any], ...]:
    pairs = tuple((given or {}).items()) if isinstance(given, Mapping | None) else given
    if not isinstance(pairs, tuple | list) or not all(_is_pair(pair) for pair in pairs):
        raise RequestError(f"extra_args is {shown(given)}; a mapping of names to values is needed.")
    for name, value in pairs:
        if name != _DRAFTS:
            raise RequestError(f"extra_args: {shown(name)} isn't known; known: {_DRAFTS}.")
        _integer(f"extra_args: {name}", value, 0, 15)
    return tuple((name, value) for name, value in pairs)


def _number(name: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    left, right = ("(" if open_low else "["), (")" if math.isinf(high) else "]")
    allowed = f"{left}{low:g}, {high:g}{right}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise RequestError(f"{name} must be a number in {allowed}, got {shown(value)}.")
    try:
        number = float(value)
    except OverflowError:  # an integer beyond every float
        number = math.inf
    inside = low < number <= high if open_low else low <= number <= high
    if not math.isfinite(number) or not inside:
        raise RequestError(f"{name} must lie in {allowed}, got {shown(value)}.")


def _integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise RequestError(f"{name} must be an integer from {low} to {high}, got {shown(value)}.")
    if not low <= int(value) <= high:
        raise RequestError(f"{name} must lie between {low} and {high}, got {shown(value)}.")


def _stop_strings(stop: object) -> tuple[str, ...]:
    values = (stop,) if isinstance(stop, str) else () if stop is None else stop
    if not isinstance(values, (list, tuple)) or not all(isinstance(s, str) for s in values):
        raise RequestError(f"stop must be a string or a list of strings, got {shown(stop)}.")
    if "" in values:
        raise RequestError(
            "stop holds an empty string, which would end every text at once: remove it."
        )
    return tuple(values)


def _stop_token_ids(ids: object) -> tuple[int, ...]:
    values = () if ids is None else ids
    if not isinstance(values, (list, tuple)):
        raise RequestError(f"stop_token_ids must be a list of token ids, got {shown(ids)}.")
    for value in values:
        _integer("stop_token_ids", value, 0, 2**31 - 1)
    if len(values) > MAX_STOP_IDS:
        raise RequestError(
            f"stop_token_ids holds {len(values)} ids; at most {MAX_STOP_IDS} are allowed, end-of-sequence ids included."
        )
    return tuple(int(value) for value in values)


def _logit_bias(bias: object) -> tuple[tuple[int, float], ...]:
    pairs = () if bias is None else tuple(bias.items()) if isinstance(bias, Mapping) else bias
    if not isinstance(pairs, (list, tuple)) or not all(_is_pair(pair) for pair in pairs):
        raise RequestError(f"logit_bias must map token ids to numbers, got {shown(bias)}.")
    if len(pairs) > MAX_LOGIT_BIAS:
        raise RequestError(
            f"logit_bias holds {len(pairs)} ids; at most {MAX_LOGIT_BIAS} are allowed: remove {len(pairs) - MAX_LOGIT_BIAS}."
        )
    found: dict[int, float] = {}
    for key, value in pairs:
        token = _token_id(key)
        if token in found:
            raise RequestError(f"logit_bias names token {token} twice: give one number.")
        _number(f"logit_bias of token {token}", value, -100.0, 100.0)
        found[token] = float(value)
    return tuple(sorted(found.items()))


def _is_pair(pair: object) -> bool:
    return isinstance(pair, (list, tuple)) and len(pair) == 2


def _token_id(key: object) -> int:
    """An id as a number, or as the digits that it becomes in JSON."""
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10:
        key = int(key)
    _integer("a token id of logit_bias", key, 0, 2**31 - 1)
    return int(key)  # type: ignore[call-overload]
