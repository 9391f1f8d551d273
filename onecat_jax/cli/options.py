"""Options that several commands share: the engine's and the sampling settings."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onecat_jax.config import EngineConfig
from onecat_jax.errors import first_line, shown
from onecat_jax.sampling_params import MAX_LOGPROBS, SamplingParams
from onecat_jax.speculation.config import without_meaning

if TYPE_CHECKING:
    from onecat_jax.llm import LLM

# One request runs at a time. Room for two keeps plain-JAX routes away from one-row programs, which round differently from
# the wider programs that the same request gets elsewhere.
_ROWS = 2
MODEL_HELP = "folder, owner/name of the Hugging Face Hub, or tiny, the embedded model"


def _json_object(text: str) -> dict[str, Any]:
    """A JSON object; an argparse error if it isn't one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # integers of thousands of digits among it
        raise argparse.ArgumentTypeError(f"{shown(text)} is no JSON: {first_line(error)}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{shown(text)} is no JSON object such as {{...}}")
    return value


_ENGINE: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "dtype": (str, "TYPE", "compute dtype: auto, half, float16, float32, bfloat16"),
    "kv_cache_dtype": (str, "TYPE", "auto, float16, float32, fp8_e4m3, fp8_e5m2"),
    "max_model_len": (
        int,
        "N",
        "prompt and new tokens of a request at most; default: the model's limit, or what fits",
    ),
    "max_num_seqs": (int, "N", "requests decoded together"),
    "max_num_batched_tokens": (int, "N", "tokens of one prefill chunk"),
    "block_size": (int, "N", "tokens per page of the KV cache"),
    "tensor_parallel_size": (int, "N", "devices that share the model; default 1"),
    "gpu_memory_utilization": (float, "X", "share of each device's memory to plan with"),
    "speculative_config": (
        _json_object,
        "JSON",
        'who drafts tokens ahead: \'{"method": "dflash", "model": FOLDER}\', \'{"method": "mtp"}\' or \'{"method": "ngram"}\'',
    ),
}
_ONE_REQUEST = (
    "dtype",
    "kv_cache_dtype",
    "max_model_len",
    "tensor_parallel_size",
    "gpu_memory_utilization",
    "speculative_config",
)
_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "max_tokens",
    "min_tokens",
    "stop",
    "logprobs",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
)


def add_engine_options(
    parser: "argparse._ActionsContainer", names: Iterable[str] = tuple(_ENGINE)
) -> None:
    """Engine arguments; names are those of `EngineConfig`."""
    for name in names:
        kind, metavar, text = _ENGINE[name]
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=text)


def engine_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The engine arguments that were given."""
    found = {name: getattr(args, name, None) for name in _ENGINE}
    return {name: value for name, value in found.items() if value is not None}


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """--model, and the engine arguments that make sense for one request at a time."""
    group = parser.add_argument_group("model")
    group.add_argument("--model", default="tiny", help=f"{MODEL_HELP} (default)")
    add_engine_options(group, _ONE_REQUEST)


def add_sampling_options(parser: argparse.ArgumentParser, *, max_tokens: int) -> None:
    """Sampling settings; what isn't given follows the checkpoint."""
    group = parser.add_argument_group("sampling (what isn't given follows the checkpoint)")
    group.add_argument(
        "--max-tokens",
        type=int,
        default=max_tokens,
        metavar="N",
        help=f"new tokens at most; default {max_tokens}",
    )
    group.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="0 = always the likeliest token",
    )
    group.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        help="sample from the likeliest tokens that make up P; 1 = off",
    )
    group.add_argument(
        "--top-k", type=int, metavar="K", help="sample from the K likeliest tokens; 0 = off"
    )
    group.add_argument(
        "--min-p",
        type=float,
        metavar="P",
        help="drop tokens less likely than P times the likeliest; 0 = off",
    )
    group.add_argument(
        "--seed", type=int, metavar="N", help="64 bits; the same seed, the same text"
    )
    group.add_argument(
        "--min-tokens", type=int, metavar="N", help="don't stop before so many tokens"
    )
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end at this text; may be repeated"
    )
    group.add_argument(
        "--logprobs",
        type=int,
        metavar="N",
        help=f"log probabilities, with the N likeliest tokens (0 to {MAX_LOGPROBS})",
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on past the end mark")
    _add_repetition_options(group)


def _add_repetition_options(group: "argparse._ActionsContainer") -> None:
    group.add_argument(
        "--presence-penalty",
        type=float,
        metavar="X",
        help="lower the logits of tokens in the answer so far by X (-2 to 2)",
    )
    group.add_argument(
        "--frequency-penalty",
        type=float,
        metavar="X",
        help="the same, by X for each time they occur (-2 to 2)",
    )
    group.add_argument(
        "--repetition-penalty",
        type=float,
        metavar="X",
        help="divide logits of tokens in prompt and answer by X (multiply where negative); 1 = off",
    )
    group.add_argument(
        "--logit-bias",
        type=_bias,
        action="append",
        metavar="ID=VALUE",
        help="add VALUE (-100 to 100) to the logit of token ID; may be repeated",
    )


def _bias(text: str) -> tuple[str, float]:
    """A token id, as its digits, and its bias; an argparse error if it isn't ID=VALUE."""
    token, equals, value = text.partition("=")
    if not equals or not token.strip().isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no ID=VALUE, such as 42=-100")
    try:
        return token.strip(), float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} in {text!r} is no number") from None


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """How results are written."""
    group = parser.add_argument_group("output")
    group.add_argument(
        "--json", action="store_true", help="JSON instead of text, with all ids and figures"
    )
    group.add_argument(
        "--no-stream", action="store_true", help="write the text when it is complete"
    )
    group.add_argument(
        "--quiet", action="store_true", help="the text alone: no figures, no progress"
    )


def sampling_params(args: argparse.Namespace, defaults: SamplingParams) -> SamplingParams:
    """Settings of the command line over those of the checkpoint.

    Raises:
      RequestError: a value out of range.
    """
    given: dict[str, Any] = {
        name: getattr(args, name) for name in _SAMPLING if getattr(args, name) is not None
    }
    return replace(defaults, ignore_eos=args.ignore_eos, **given)


def _name_ignored(speculative: Mapping[str, Any]) -> None:
    """Says in one line which accepted keys mean nothing here."""
    if ignored := without_meaning(speculative):
        listed = ", ".join(ignored)
        print(f"onecat: speculative_config: {listed} means nothing here", file=sys.stderr)


def open_engine(args: argparse.Namespace) -> "LLM":
    """Loads the model, with progress on a terminal.

    Raises:
      CheckpointError, ModelConfigError, EngineError, CapacityError: see `LLM`.
      RequestError: a sampling setting out of range.
    """
    # JAX takes seconds to import; wrong arguments are refused before.
    EngineConfig.from_arguments(engine_arguments(args))
    sampling_params(args, SamplingParams())
    if not args.quiet:
        _name_ignored(args.speculative_config or {})
    from onecat_jax.cli.progress import terminal_progress
    from onecat_jax.llm import LLM

    progress = None if args.quiet else terminal_progress()
    return LLM(model=args.model, max_num_seqs=_ROWS, progress=progress, **engine_arguments(args))
