"""What `onecat info` knows about a checkpoint, as plain values. Reads headers, no weights."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import jax
import numpy as np

from onecat_jax.config import EngineConfig
from onecat_jax.errors import CapacityError
from onecat_jax.loading.checkpoint import Checkpoint
from onecat_jax.loading.device_memory import DeviceMemory
from onecat_jax.loading.formats import Source
from onecat_jax.loading.memory_plan import PlanRequest, largest, requirements
from onecat_jax.loading.planning import plan_memory, plan_request
from onecat_jax.loading.ranks import check_ranks
from onecat_jax.loading.sources import find_sources
from onecat_jax.loading.weight_sizes import device_bytes, group_of
from onecat_jax.models.qwen3_5.config import ModelConfig
from onecat_jax.models.registry import resolve

_V100_GIB = (16, 32)


def build_report(model: str, engine: EngineConfig) -> dict[str, Any]:
    """Everything that `info` says, as JSON values; bytes are integers.

    Raises:
      CheckpointError, ModelConfigError: the checkpoint can't be used.
      EngineError: it doesn't divide over tensor_parallel_size devices.
    """
    checkpoint = Checkpoint.open(model)
    family = resolve(checkpoint.config)
    config = family.read_config(checkpoint.config)
    sources = find_sources(checkpoint, family.tensor_specs(config))
    check_ranks(config, sources, engine.tensor_parallel_size)
    device = jax.local_devices()[0]
    request = plan_request(engine, config, device.platform)
    return {
        "model": model,
        "path": str(checkpoint.root),
        "architecture": _architecture(checkpoint) or family.name,
        "family": family.name,
        "config": asdict(config) | {"layer_types": list(config.layer_types)},
        "parameters": sum(_size(s) for n, s in sources.items() if not n.startswith("mtp.")),
        "mtp_parameters": sum(_size(s) for n, s in sources.items() if n.startswith("mtp.")),
        "files": len({info.file for info in checkpoint.tensors.values()}),
        "file_bytes": sum(info.nbytes for info in checkpoint.tensors.values()),
        "quantization": _quantization(checkpoint),
        "groups": _groups(checkpoint, sources, request),
        "v100": [_v100(config, sources, engine, size) for size in _V100_GIB],
        "request": asdict(request),
        "plan": _plan(engine, config, sources, device),
    }


def _architecture(checkpoint: Checkpoint) -> str | None:
    named = checkpoint.config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else None


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
    """Per group: parameters, tensors of each format, bytes in the files and on each device."""
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
        row["device_bytes"] += device_bytes(name, source, request.compute_itemsize, request.ranks)
    return [{"name": name, **row} for name, row in groups.items()]


def _v100(
    config: ModelConfig, sources: Mapping[str, Source], engine: EngineConfig, size: int
) -> dict[str, Any]:
    """Context bounds in float16 on as many V100s as ranks: of a single request, and of max_num_seqs at once."""
    limit = config.max_position_embeddings
    wanted = replace(engine, dtype="float16", max_model_len=limit)
    request = plan_request(wanted, config, "gpu")
    name = f"V100 {size} GB"
    memory = DeviceMemory(int(size * 2**30 * engine.gpu_memory_utilization), name, "nominal size")
    needs = requirements(config, sources, request)
    single = largest(needs.with_request("max_num_seqs", 1), memory, "max_model_len", limit)
    pages = max(needs.pages_within(memory.available) - 1, 0)
    return {
        "gib": size,
        "max_model_len_one_request": single,
        "max_model_len_each": min(pages // request.max_num_seqs * request.block_size, limit),
        "max_num_seqs": request.max_num_seqs,
    }


def _plan(
    engine: EngineConfig, config: ModelConfig, sources: Mapping[str, Source], device: jax.Device
) -> dict[str, Any]:
    try:
        plan = plan_memory(engine, config, sources, [device])
    except CapacityError as refusal:
        return {"fits": False, "reason": str(refusal)}
    return {
        "fits": True,
        "device": plan.memory.device,
        "available": plan.memory.available,
        "source": plan.memory.source,
        "max_model_len": plan.request.max_model_len,
        "groups": dict(plan.groups),
        "total": plan.total,
        "pages": plan.pages,
        "kv_tokens": plan.kv_tokens,
        "table": plan.table(),
    }
