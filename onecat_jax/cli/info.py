"""`onecat info`: what a checkpoint is, what it needs, and how much context fits.

Reads headers, no weights.
"""

import argparse
import json
from collections.abc import Mapping
from typing import Any

from onecat_jax.cli.model_report import build_report
from onecat_jax.config import EngineConfig
from onecat_jax.loading.device_memory import gib

_OPTIONS = {
    "max_model_len": (int, "tokens of one request; default: the model's limit, or what fits"),
    "max_num_seqs": (int, "requests decoded together"),
    "max_num_batched_tokens": (int, "tokens of one prefill chunk"),
    "block_size": (int, "tokens per page"),
    "dtype": (str, "compute dtype: auto, half, float16, float32, bfloat16"),
    "kv_cache_dtype": (str, "auto, float16, float32, fp8_e4m3, fp8_e5m2"),
    "gpu_memory_utilization": (float, "share of the device's memory to plan with"),
}
_EXAMPLES = """examples:
  onecat info tiny
  onecat info ./Qwen3.8-27B-NVFP4 --max-model-len 32768 --max-num-seqs 4
  onecat info ./Qwen3.8-27B-NVFP4 --json
"""


def add_parser(subparsers: Any) -> None:
    """Adds `info` to the commands."""
    parser = subparsers.add_parser(
        "info",
        help="what a checkpoint is, what it needs, how much context fits",
        description="Shows architecture, formats, bytes, bounds on a V100, and the memory plan.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", nargs="?", default="tiny", help="folder, owner/name, or tiny")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    for name, (kind, text) in _OPTIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=text)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the report.

    Raises:
      CheckpointError, ModelConfigError: the checkpoint can't be used.
      EngineError: an option out of range.
    """
    given = {name: value for name in _OPTIONS if (value := getattr(args, name)) is not None}
    report = build_report(args.model, EngineConfig.from_arguments(given))
    print(json.dumps(report) if args.json else render(report))
    return 0


def render(report: Mapping[str, Any]) -> str:
    """The report as text."""
    config = report["config"]
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
        "",
        f"  {'group':<22}{'parameters':>12}{'in files':>12}{'on device':>12}  formats",
        *(_group_line(group) for group in report["groups"]),
        "",
        *(_v100_line(bound) for bound in report["v100"]),
        "",
        *_plan_lines(report["plan"], report["request"]),
    ]
    return "\n".join(lines)


def _words(quantization: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in quantization.items() if value)


def _group_line(group: Mapping[str, Any]) -> str:
    formats = ", ".join(f"{count} {form}" for form, count in group["formats"].items())
    return (
        "  "
        f"{group['name']:<22}{_count(group['parameters']):>12}{gib(group['file_bytes']):>12}{gib(group['device_bytes']):>12} "
        f" {formats}"
    )


def _v100_line(bound: Mapping[str, Any]) -> str:
    name = f"  V100 {bound['gib']} GB, one GPU, float16: "
    if not bound["max_model_len_one_request"]:
        return name + "the model doesn't fit"
    each = f", {bound['max_num_seqs']} requests up to {bound['max_model_len_each']} tokens each"
    return f"{name}one request up to {bound['max_model_len_one_request']} tokens{each}"


def _plan_lines(plan: Mapping[str, Any], request: Mapping[str, Any]) -> list[str]:
    if not plan["fits"]:
        return [plan["reason"]]
    title = (
        f"  plan on {plan['device']}: {request['compute_dtype']}, max_model_len "
        f"{plan['max_model_len']}, max_num_seqs {request['max_num_seqs']}"
    )
    return [title, plan["table"], f"  the KV cache holds {plan['kv_tokens']} tokens"]


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.2f} M"
