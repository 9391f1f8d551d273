"""What `onecat info` knows about a checkpoint, as plain values. Reads headers, no weights."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import jax
import numpy as np

from onecat_jax.config import EngineConfig
from onecat_jax.errors import CapacityError
from onecat_jax.loading.cache_scales import find_cache_scales
from onecat_jax.loading.cards import V100_MIB, pool_fraction, v100_bound
from onecat_jax.loading.checkpoint import Checkpoint
from onecat_jax.loading.draft_plan import DraftPlan
from onecat_jax.loading.formats import Source
from onecat_jax.loading.memory_plan import KV_STORAGE, PlanRequest
from onecat_jax.loading.planning import plan_memory, plan_request
from onecat_jax.loading.ranks import check_ranks
from onecat_jax.loading.sources import find_sources
from onecat_jax.loading.weight_sizes import group_of
from onecat_jax.models.qwen3_5.config import ModelConfig
from onecat_jax.models.registry import resolve
from onecat_jax.speculation.setup import open_draft, plan_draft

_V100_RANKS = (1, 2, 4)


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
    draft = open_draft(engine.speculation, model, config)
    extra = plan_draft(engine.speculation, draft, config, engine, device.platform)
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
        "cache_scales": _cache_scales(checkpoint, request),
        "v100": _v100(config, sources, engine),
        "pool_fraction": pool_fraction(),
        "request": asdict(request),
        "plan": _plan(engine, config, sources, device, extra),
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


def _cache_scales(checkpoint: Checkpoint, request: PlanRequest) -> dict[str, Any] | None:
    """Stored scales of a float8 cache, and whether this cache is one; None if none are stored."""
    layers = find_cache_scales(checkpoint).layers
    if not layers:
        return None
    keys, values = zip(*layers.values(), strict=True)
    return {
        "layers": len(layers),
        "keys": [min(keys), max(keys)],
        "values": [min(values), max(values)],
        "cache": request.kv_dtype,
        "used": request.kv_dtype in KV_STORAGE,
    }


def _groups(
    checkpoint: Checkpoint, sources: Mapping[str, Source], request: PlanRequest
) -> list[dict[str, Any]]:
    """Per group: parameters, bytes in the files and on each device, and of each format tensors and bytes on each device."""
    groups: dict[str, dict[str, Any]] = {}
    sizes = request.sizes.of(sources)
    for name, source in sources.items():
        row = groups.setdefault(
            group_of(name, source),
            {
                "parameters": 0,
                "formats": {},
                "format_bytes": {},
                "file_bytes": 0,
                "device_bytes": 0,
            },
        )
        stored = [checkpoint.tensors[part] for part in source.parts]
        form = str(source.storage) if source.format != "dense" else stored[0].dtype
        row["parameters"] += _size(source)
        row["formats"][form] = row["formats"].get(form, 0) + 1
        row["format_bytes"][form] = row["format_bytes"].get(form, 0) + sizes[name]
        row["file_bytes"] += sum(info.nbytes for info in stored)
        row["device_bytes"] += sizes[name]
    return [{"name": name, **row} for name, row in groups.items()]


def _v100(
    config: ModelConfig, sources: Mapping[str, Source], engine: EngineConfig
) -> list[dict[str, Any]]:
    """Bounds on one, two and four cards, and on as many as the engine is asked for."""
    counts = sorted({*_V100_RANKS, engine.tensor_parallel_size})
    return [
        asdict(v100_bound(config, sources, engine, size, ranks))
        for size in V100_MIB
        for ranks in counts
    ]


def _plan(
    engine: EngineConfig,
    config: ModelConfig,
    sources: Mapping[str, Source],
    device: jax.Device,
    draft: DraftPlan,
) -> dict[str, Any]:
    try:
        plan = plan_memory(engine, config, sources, [device], draft)
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
