"""Options that several commands share: the engine's and the sampling settings."""

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onecat_jax.sampling_params import MAX_LOGPROBS, SamplingParams

if TYPE_CHECKING:
    from onecat_jax.llm import LLM

# One request runs at a time. Room for two keeps plain-JAX routes away from one-row programs, which round differently from
# the wider programs that the same request gets elsewhere.
_ROWS = 2
_ENGINE = (
    "dtype",
    "kv_cache_dtype",
    "max_model_len",
    "tensor_parallel_size",
    "gpu_memory_utilization",
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
)


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """--model and the engine arguments."""
    group = parser.add_argument_group("model")
    group.add_argument("--model", default="tiny", help="folder, owner/name, or tiny (default)")
    group.add_argument("--dtype", help="auto, half, float16, float32, bfloat16")
    group.add_argument("--kv-cache-dtype", help="auto, float16, float32, fp8_e4m3, fp8_e5m2")
    group.add_argument(
        "--max-model-len", type=int, metavar="N", help="prompt and new tokens at most"
    )
    group.add_argument(
        "--tensor-parallel-size", type=int, metavar="N", help="devices; only 1 so far"
    )
    group.add_argument(
        "--gpu-memory-utilization", type=float, metavar="X", help="share of the memory to plan with"
    )


def add_sampling_options(parser: argparse.ArgumentParser, *, max_tokens: int) -> None:
    """Sampling settings; what isn't given follows the checkpoint."""
    group = parser.add_argument_group("sampling (what isn't given follows the checkpoint)")
    group.add_argument(
        "--max-tokens", type=int, default=max_tokens, metavar="N", help=f"default {max_tokens}"
    )
    group.add_argument("--temperature", type=float, metavar="T", help="0 = greedy")
    group.add_argument("--top-p", type=float, metavar="P", help="in (0, 1]; 1 = off")
    group.add_argument("--top-k", type=int, metavar="K", help="0 = off")
    group.add_argument("--min-p", type=float, metavar="P", help="in [0, 1]; 0 = off")
    group.add_argument(
        "--seed", type=int, metavar="N", help="64 bits; the same seed, the same text"
    )
    group.add_argument("--min-tokens", type=int, metavar="N", help="don't stop before")
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end at this text; may be repeated"
    )
    group.add_argument(
        "--logprobs", type=int, metavar="N", help=f"log probabilities, 0 to {MAX_LOGPROBS} others"
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on past the end mark")


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


def open_engine(args: argparse.Namespace) -> "LLM":
    """Loads the model, with progress on a terminal.

    Raises:
      CheckpointError, ModelConfigError, EngineError, CapacityError: see `LLM`.
    """
    # JAX takes seconds to import; help and wrong arguments shouldn't wait for it.
    from onecat_jax.cli.progress import terminal_progress
    from onecat_jax.llm import LLM

    given = {name: getattr(args, name) for name in _ENGINE if getattr(args, name) is not None}
    progress = None if args.quiet else terminal_progress()
    return LLM(model=args.model, max_num_seqs=_ROWS, progress=progress, **given)
