"""`onecat info`: what a checkpoint is, what it needs, and how much context fits.

Reads headers, no weights.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from onecat_jax.cli.options import MODEL_HELP, add_engine_options, engine_arguments
from onecat_jax.config import EngineConfig
from onecat_jax.sizes import gib

_EXAMPLES = """examples:
  onecat info tiny
  onecat info ./Qwen3.8-27B-NVFP4 --max-model-len 32768 --max-num-seqs 4
  onecat info ./Qwen3.8-27B-NVFP4 --tensor-parallel-size 4
  onecat info ./Qwen3.8-27B-NVFP4 --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Gives the parser of `info` its texts and options."""
    parser.description = (
        "Shows architecture, formats, bytes, bounds on a V100, and the memory plan."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument("model", nargs="?", default="tiny", help=f"{MODEL_HELP} (default)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    add_engine_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the report.

    Raises:
      CheckpointError, ModelConfigError: the checkpoint can't be used.
      EngineError: an option out of range.
    """
    from onecat_jax.cli.model_report import build_report  # imports JAX

    report = build_report(args.model, EngineConfig.from_arguments(engine_arguments(args)))
    print(json.dumps(report) if args.json else render(report))
    return 0


def render(report: Mapping[str, Any]) -> str:
    """The report as text."""
    config, ranks = report["config"], report["request"]["ranks"]
    on = "on device" if ranks == 1 else "per device"
    kinds = config["layer_types"]
    quantization = report["quantization"]
    lines = [
        f"{report['model']}  ({report['path']})",
        f"  architecture   {report['architecture']}, family {report['family']}",
        f"  layers         {len(kinds)}: {kinds.count('linear_attention')} GDN, "
        f"{kinds.count('full_attention')} full attention; hidden {config['hidden_size']}, "
        f"vocabulary {config['vocab_size']}, positions {config['max_position_embeddings']}",
        f"  parameters     {_count(report['parameters'])}, MTP head "
        f"{_count(report['mtp_parameters'])}",
        f"  files          {report['files']}, {gib(report['file_bytes'])}",
        "  quantisation   " + (_words(quantization) if quantization else "none"),
        *_cache_lines(report["cache_scales"]),
        "",
        f"  {'group':<22}{'parameters':>12}{'in files':>12}{on:>12}  formats",
        *(_group_line(group) for group in report["groups"]),
        "",
        *(_v100_line(bound) for bound in report["v100"]),
        f"  (V100: JAX's pool is {report['pool_fraction']:.0%} of the card, XLA_PYTHON_CLIENT_MEM_FRACTION)",
        "",
        *_plan_lines(report["plan"], report["request"]),
    ]
    return "\n".join(lines)


def _words(quantization: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in quantization.items() if value)


def _cache_lines(scales: Mapping[str, Any] | None) -> list[str]:
    if scales is None:
        return []
    ranges = ", ".join(f"{what} {_range(scales[what])}" for what in ("keys", "values"))
    used = "used" if scales["used"] else f"not used by this {scales['cache']} cache"
    return [f"  cache scales   stored for {scales['layers']} layers: {ranges}; {used}"]


def _range(bounds: Sequence[float]) -> str:
    low, high = bounds
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _group_line(group: Mapping[str, Any]) -> str:
    formats = ", ".join(
        f"{count} {form} ({gib(group['format_bytes'][form])})"
        for form, count in group["formats"].items()
    )
    return (
        "  "
        f"{group['name']:<22}{_count(group['parameters']):>12}{gib(group['file_bytes']):>12}{gib(group['device_bytes']):>12} "
        f" {formats}"
    )


def _v100_line(bound: Mapping[str, Any]) -> str:
    machine = "one GPU" if bound["ranks"] == 1 else f"{bound['ranks']} GPUs"
    name = f"  V100 {bound['gib']} GB, {machine}, float16: "
    if bound["reason"]:
        return f"{name}no, {bound['reason']}"
    if not bound["max_model_len_one_request"]:
        return name + "the model doesn't fit"
    count, tokens = bound["max_num_seqs"], bound["max_model_len_each"]
    each = f"{count} requests up to {tokens} tokens each" if tokens else f"no {count} at once"
    return f"{name}one request up to {bound['max_model_len_one_request']} tokens, {each}"


def _plan_lines(plan: Mapping[str, Any], request: Mapping[str, Any]) -> list[str]:
    if not plan["fits"]:
        return [plan["reason"]]
    ranks = request["ranks"]
    device = plan["device"] if ranks == 1 else f"{ranks} devices like {plan['device']}"
    title = (
        f"  plan on {device}: {request['compute_dtype']}, max_model_len "
        f"{plan['max_model_len']}, max_num_seqs {request['max_num_seqs']}"
    )
    return [title, plan["table"], f"  the KV cache holds {plan['kv_tokens']} tokens"]


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.2f} M"
