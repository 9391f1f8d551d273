"""Four-layer checkpoints in any weight format, and the same models in memory from decoded weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from checkpoints import (
    DENSE_LINEARS,
    SMALL,
    config_json,
    random_tensors,
    tensor_specs,
    write_json,
    write_tensors,
)
from format_writers import FORMATS
from model_harness import Harness

from onecat_jax.config import EngineConfig
from onecat_jax.custom_calls.linear import DenseTensor, LinearRoute
from onecat_jax.loading import Checkpoint
from onecat_jax.loading.sources import find_sources
from onecat_jax.model_loader import load_model
from onecat_jax.models.qwen3_5 import ForwardOptions, ModelConfig, build_params
from onecat_jax.models.registry import resolve
from onecat_jax.models.tensors import HostTensor
from onecat_jax.sharding import Placement

# Parts of four ranks are whole blocks and groups of 128, and whole tiles of every layout; key/value heads are repeated.
MODEL = replace(
    SMALL,
    vocab_size=512,
    hidden_size=256,
    intermediate_size=512,
    layer_types=("linear_attention", "linear_attention", "linear_attention", "full_attention"),
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=64,
    linear_num_key_heads=4,
    linear_num_value_heads=8,
    linear_key_head_dim=64,
    linear_value_head_dim=64,
    mtp_num_hidden_layers=0,
)
CAPACITY = 128
Layout = Callable[[str], str]  # canonical module -> name of a format, "" for dense


def usual(form: str) -> Layout:
    """One format for everything but head and gates."""
    return lambda module: "" if module.endswith(DENSE_LINEARS) else form


@dataclass(frozen=True)
class Model:
    """A written checkpoint.

    Attributes:
      decoded: its tensors by canonical name, linears as float32 matrices.
      layout: format of every linear module.
    """

    folder: Path
    config: ModelConfig
    decoded: Mapping[str, HostTensor]
    layout: Mapping[str, str]


def write_model(
    folder: Path,
    layout: Layout,
    record: Mapping[str, Any] | None = None,
    config: ModelConfig = MODEL,
    extra: Mapping[str, np.ndarray] | None = None,
) -> Model:
    """Writes a checkpoint.

    Args:
      layout: the format of every linear.
      record: quantization_config; that of the only format if it isn't given, none if it is empty.
      extra: more tensors by stored name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    specs = tensor_specs(config)
    stored, decoded, formats = dict(extra or {}), dict[str, HostTensor](), dict[str, str]()
    for name, matrix in random_tensors(config).items():
        module = name.removesuffix(".weight")
        form = layout(module) if specs[name].kind == "linear" else ""
        values = matrix
        if form:
            written = FORMATS[form].write(matrix)
            parts = {f"{stored_name(module)}.{s}": a for s, a in written.parts.items()}
            stored |= parts
            values = written.values.astype(np.float32)
        else:
            stored[stored_name(name)] = matrix.astype(ml_dtypes.bfloat16)
        linear = specs[name].kind == "linear"
        decoded[name] = DenseTensor(values) if linear else values
        if linear:
            formats[module] = form
    config_file = config_json(config)
    record = record_of(formats) if record is None else record
    if record:
        config_file["quantization_config"] = record
    write_json(folder / "config.json", config_file)
    write_tensors(folder, stored)
    return Model(folder, config, decoded, formats)


def stored_name(name: str) -> str:
    return name if name.startswith("lm_head") else f"model.{name}"


def record_of(formats: Mapping[str, str]) -> Mapping[str, Any]:
    """The record of a checkpoint with one format."""
    dense = [stored_name(module) for module, form in formats.items() if not form]
    (form,) = {form for form in formats.values() if form}
    return FORMATS[form].record(dense)


def load(model: Path, ranks: int = 1, **engine: Any) -> Harness:
    """A folder through sources and loader, as the engine does it; float32."""
    checkpoint = Checkpoint.open(model)
    family = resolve(checkpoint.config)
    config = family.read_config(checkpoint.config)
    sources = find_sources(checkpoint, family.tensor_specs(config))
    placement = Placement.of(ranks)
    arguments = EngineConfig(tensor_parallel_size=ranks, **engine)
    loaded = load_model(checkpoint, sources, config, arguments, lambda *_: None, placement)
    return Harness(loaded.params, loaded.options, CAPACITY, placement)


def dense_twin(model: Model) -> Harness:
    """The same model from decoded weights, on one rank."""
    placement = Placement.of(1)
    params = build_params(
        model.decoded,
        model.config,
        route=LinearRoute(),
        dtype="float32",
        loops="layers",
        placement=placement,
    )
    options = ForwardOptions(model.config, "float32", LinearRoute().policy)
    return Harness(params, options, CAPACITY, placement)


def logits(
    harness: Harness, step: Any, tokens: Sequence[int], prompt: int, cache: str = ""
) -> np.ndarray:
    """[T, V]: a prefill, then single cached steps, by a jitted step that may belong to a twin of the harness.

    cache: dtype of keys and values, if it isn't that of the activations.
    """
    state, found = harness.new_state(), []
    if cache:
        kv = replace(state.kv, k=state.kv.k.astype(cache), v=state.kv.v.astype(cache))
        state = replace(state, kv=kv)
    starts = [(0, prompt), *((at, at + 1) for at in range(prompt, len(tokens)))]
    for start, stop in starts:
        width = 64 if start == 0 else 1
        batch = harness.batch(tokens[start:stop], start, width)
        out, state = step(harness.params, state, batch)
        found.append(np.asarray(out[0, : stop - start]))
    return np.concatenate(found)
