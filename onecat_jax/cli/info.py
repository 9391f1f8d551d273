"""`onecat info`: what a checkpoint is, what it needs, and how much context fits.

Reads headers, no weights.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import jax
import numpy as np

from onecat_jax.errors import CapacityError
from onecat_jax.loading.checkpoint import Checkpoint
from onecat_jax.loading.device_memory import DeviceMemory, device_memory, gib
from onecat_jax.loading.formats import Source
from onecat_jax.loading.memory_plan import (
    PlanRequest,
    Requirements,
    device_bytes,
    fit,
    group_of,
    largest,
    requirements,
)
from onecat_jax.loading.sources import find_sources
from onecat_jax.models.qwen3_5.config import ModelConfig
from onecat_jax.models.registry import resolve

_V100_GIB = (16, 32)
_DTYPES = ("float16", "bfloat16", "float32")
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
    parser.add_argument("--max-model-len", type=_positive, help="default: the model's maximum")
    parser.add_argument("--max-num-seqs", type=_positive, default=8)
    parser.add_argument("--max-num-batched-tokens", type=_positive, default=2048)
    parser.add_argument("--block-size", type=_positive, default=16, help="tokens per page")
    parser.add_argument("--dtype", choices=("auto", "half", *_DTYPES), default="auto")
    parser.add_argument("--kv-cache-dtype", choices=("auto", *_DTYPES), default="auto")
    parser.add_argument("--gpu-memory-utilization", type=_fraction, default=0.9)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the report.

    Raises:
      CheckpointError, ModelConfigError: the checkpoint can't be used.
    """
    report = build_report(args)
    print(json.dumps(report) if args.json else render(report))
    return 0


def build_report(args: argparse.Namespace) -> dict[str, Any]:
    """Everything that `info` says, as JSON values; bytes are integers."""
    checkpoint = Checkpoint.open(args.model)
    family = resolve(checkpoint.config)
    config = family.read_config(checkpoint.config)
    sources = find_sources(checkpoint, family.tensor_specs(config))
    device = jax.local_devices()[0]
    request = _request(args, config, device.platform)
    memory = device_memory(device, args.gpu_memory_utilization)
    return {
        "model": str(args.model),
        "path": str(checkpoint.root),
        "architecture": (checkpoint.config.get("architectures") or [family.name])[0],
        "family": family.name,
        "config": asdict(config) | {"layer_types": list(config.layer_types)},
        "parameters": sum(_size(s) for n, s in sources.items() if not n.startswith("mtp.")),
        "mtp_parameters": sum(_size(s) for n, s in sources.items() if n.startswith("mtp.")),
        "files": len({info.file for info in checkpoint.tensors.values()}),
        "file_bytes": sum(info.nbytes for info in checkpoint.tensors.values()),
        "quantization": _quantization(checkpoint),
        "groups": _groups(checkpoint, sources, request),
        "v100": [_v100(config, sources, request, args, size) for size in _V100_GIB],
        "request": asdict(request),
        "plan": _plan(requirements(config, sources, request), memory),
    }


def _request(args: argparse.Namespace, config: ModelConfig, platform: str) -> PlanRequest:
    automatic = "float32" if platform == "cpu" else "float16"
    compute = {"auto": automatic, "half": "float16"}.get(args.dtype, args.dtype)
    return PlanRequest(
        max_model_len=args.max_model_len or config.max_position_embeddings,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        block_size=args.block_size,
        compute_dtype=compute,
        kv_dtype=compute if args.kv_cache_dtype == "auto" else args.kv_cache_dtype,
    )


def _size(source: Source) -> int:
    return int(np.prod(source.spec.shape))


def _quantization(checkpoint: Checkpoint) -> dict[str, Any] | None:
    record = checkpoint.quantization
    if record is None:
        return None
    algorithm = record.get("quant_algo") or record.get("format")
    kv = record.get("kv_cache_quant_algo") or record.get("kv_cache_scheme")
    return {"method": record.get("quant_method"), "algorithm": algorithm, "kv_cache": kv}


def _groups(
    checkpoint: Checkpoint, sources: Mapping[str, Source], request: PlanRequest
) -> list[dict[str, Any]]:
    """Per group: parameters, tensors of each format, bytes in the files and on the device."""
    groups: dict[str, dict[str, Any]] = {}
    for name, source in sources.items():
        row = groups.setdefault(
            group_of(name, source),
            {"parameters": 0, "formats": {}, "file_bytes": 0, "device_bytes": 0},
        )
        stored = [checkpoint.tensors[part] for part in source.parts]
        form = source.format if source.format != "dense" else stored[0].dtype
        row["parameters"] += _size(source)
        row["formats"][form] = row["formats"].get(form, 0) + 1
        row["file_bytes"] += sum(info.nbytes for info in stored)
        row["device_bytes"] += device_bytes(name, source, request.compute_itemsize)
    return [{"name": name, **row} for name, row in groups.items()]


def _v100(
    config: ModelConfig,
    sources: Mapping[str, Source],
    request: PlanRequest,
    args: argparse.Namespace,
    size: int,
) -> dict[str, Any]:
    """Context bounds of one V100 in float16: of a single request, and of max_num_seqs at once."""
    kv = "float16" if args.kv_cache_dtype == "auto" else args.kv_cache_dtype
    request = replace(request, compute_dtype="float16", kv_dtype=kv)
    memory = DeviceMemory(int(size * 2**30 * args.gpu_memory_utilization), f"V100 {size} GB", "")
    needs = requirements(config, sources, request)
    limit = config.max_position_embeddings
    single = largest(needs.with_request("max_num_seqs", 1), memory, "max_model_len", limit)
    pages = needs.pages_within(memory.available)
    together = max(pages - 1, 0) // request.max_num_seqs * request.block_size
    return {
        "gib": size,
        "max_model_len_one_request": single,
        "max_model_len_each": min(together, limit),
        "max_num_seqs": request.max_num_seqs,
    }


def _plan(needs: Requirements, memory: DeviceMemory) -> dict[str, Any]:
    try:
        plan = fit(needs, memory)
    except CapacityError as refusal:
        return {"fits": False, "device": memory.device, "reason": str(refusal)}
    return {
        "fits": True,
        "device": memory.device,
        "available": memory.available,
        "source": memory.source,
        "groups": dict(plan.groups),
        "total": plan.total,
        "pages": plan.pages,
        "kv_tokens": plan.kv_tokens,
    }


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
        f"  {group['name']:<22}{_count(group['parameters']):>12}{gib(group['file_bytes']):>12}"
        f"{gib(group['device_bytes']):>12}  {formats}"
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
        f"  plan on {plan['device']} ({request['compute_dtype']}, max_model_len "
        f"{request['max_model_len']}, "
        f"max_num_seqs {request['max_num_seqs']})"
    )
    rows = [*plan["groups"].items(), ("total", plan["total"]), ("available", plan["available"])]
    return [
        title,
        *(f"    {name:<22}{gib(size):>12}" for name, size in rows),
        f"    KV cache holds {plan['kv_tokens']} tokens; available is {plan['source']}",
    ]


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.2f} M"


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} isn't above 0 and up to 1")
    return value
