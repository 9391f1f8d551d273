"""Writes small random checkpoints for tests: any geometry, dense or NVFP4, one file or shards.

Files are written by the safetensors package, so that our own reader is measured against another
hand. The quantiser is a plain round-to-nearest: good enough to be a valid checkpoint, nothing more.
"""

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from onecat_jax.models.qwen3_5 import params
from onecat_jax.models.qwen3_5.config import ModelConfig
from onecat_jax.models.spec import TensorSpec, TensorSpecs

Naming = Literal["dense", "modelopt", "compressed-tensors"]
DENSE_LINEARS = ("lm_head", "in_proj_a", "in_proj_b", "mtp.fc")
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)

SMALL = ModelConfig(
    vocab_size=96,
    hidden_size=64,
    intermediate_size=96,
    layer_types=("linear_attention", "full_attention"),
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    rotary_dim=16,
    rope_theta=10000.0,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    linear_conv_kernel_dim=4,
    rms_norm_eps=1e-6,
    tie_word_embeddings=False,
    max_position_embeddings=512,
    mtp_num_hidden_layers=1,
    eos_token_id=(1,),
)
TIED = replace(SMALL, tie_word_embeddings=True)


@cache
def tensor_specs(config: ModelConfig) -> TensorSpecs:
    """What a model needs; building it takes long enough to keep it."""
    return params.tensor_specs(config)


def default_quantised(module: str) -> bool:
    """Which linears of a canonical name the usual NVFP4 recipes quantise."""
    return not module.endswith(DENSE_LINEARS)


@dataclass(frozen=True)
class Style:
    """How a checkpoint is written.

    Attributes:
      naming: dense, or the NVFP4 naming of an exporter.
      prefix: put before the names of the text model (not before lm_head and mtp).
      head_prefix: put before lm_head.
      nested: config.json with a text_config, as multimodal exports have it.
      dtype: of everything that isn't quantised.
      shards: number of files; more than one come with an index.
      quantised: which linears are NVFP4, by canonical module name.
      mtp: whether the MTP head is stored.
    """

    naming: Naming = "dense"
    prefix: str = "model."
    head_prefix: str = ""
    nested: bool = False
    dtype: Any = ml_dtypes.bfloat16
    shards: int = 1
    quantised: Callable[[str], bool] = default_quantised
    mtp: bool = True


@dataclass(frozen=True)
class Quantised:
    """An NVFP4 matrix: value = E2M1[code] * scale * multiplier."""

    codes: np.ndarray  # uint8 [N, K/2], the low nibble is the even k
    scales: np.ndarray  # E4M3 [N, K/16]
    multiplier: np.float32

    def values(self) -> np.ndarray:
        """The matrix in float64 [N, K]."""
        nibbles = np.stack([self.codes & 15, self.codes >> 4], axis=-1)
        nibbles = nibbles.reshape(self.codes.shape[0], -1)
        values = E2M1[nibbles & 7].astype(np.float64) * np.where(nibbles & 8, -1.0, 1.0)
        return values * np.repeat(self.scales.astype(np.float64), 16, axis=1) * self.multiplier


def quantise(weight: np.ndarray) -> Quantised:
    """Rounds a matrix [N, K] to NVFP4 with the scales that reach the largest magnitudes."""
    n, k = weight.shape
    blocks = weight.astype(np.float32).reshape(n, k // 16, 16)
    multiplier = np.float32(max(float(np.abs(blocks).max()), 1e-6) / 2688.0)
    scales = (np.abs(blocks).max(-1) / 6 / multiplier).astype(ml_dtypes.float8_e4m3fn)
    steps = scales.astype(np.float32)[..., None] * multiplier
    scaled = np.divide(blocks, steps, out=np.zeros_like(blocks), where=steps > 0)
    codes = np.abs(np.abs(scaled)[..., None] - E2M1).argmin(-1).astype(np.uint8)
    codes |= np.where(scaled < 0, 8, 0).astype(np.uint8)
    codes = codes.reshape(n, k)
    return Quantised(codes[:, 0::2] | codes[:, 1::2] << 4, scales, multiplier)


@cache
def random_tensors(config: ModelConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Float32 values, exact in BF16, for every tensor of a model by canonical name."""
    return {name: _random(name, spec, seed) for name, spec in tensor_specs(config).items()}


def _random(name: str, spec: TensorSpec, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    values = rng.standard_normal(spec.shape)
    if spec.kind == "linear":
        values *= spec.shape[1] ** -0.5
    elif spec.kind == "vector":
        values *= 0.1
    if name.endswith("linear_attn.norm.weight"):
        values += 1
    if name.endswith("A_log"):
        values = np.log(rng.uniform(1, 16, spec.shape))
    if name.endswith("conv1d.weight"):
        values *= 5
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def stored_tensors(
    config: ModelConfig, style: Style = Style(), seed: int = 0
) -> dict[str, np.ndarray]:
    """Everything a checkpoint of this style holds, by stored name."""
    stored: dict[str, np.ndarray] = {}
    specs = tensor_specs(config)
    for name, values in random_tensors(config, seed).items():
        if name.startswith("mtp.") and not style.mtp:
            continue
        module = name.removesuffix(".weight")
        if style.naming != "dense" and specs[name].kind == "linear" and style.quantised(module):
            parts = _parts(quantise(values), style.naming)
        else:
            parts = {name.removeprefix(module).lstrip("."): values.astype(style.dtype)}
        stored |= {_stored_name(module, suffix, style): array for suffix, array in parts.items()}
    return stored


def _stored_name(module: str, suffix: str, style: Style) -> str:
    prefix = {"lm_head": style.head_prefix, "mtp": ""}.get(module.split(".")[0], style.prefix)
    return prefix + (f"{module}.{suffix}" if suffix else module)


def _parts(matrix: Quantised, naming: Naming) -> dict[str, np.ndarray]:
    if naming == "modelopt":
        return {
            "weight": matrix.codes,
            "weight_scale": matrix.scales,
            "weight_scale_2": np.asarray(matrix.multiplier),
            "input_scale": np.asarray(np.float32(0.01)),
        }
    return {
        "weight_packed": matrix.codes,
        "weight_scale": matrix.scales,
        "weight_global_scale": np.asarray([np.float32(1) / matrix.multiplier]),
        "input_global_scale": np.asarray([np.float32(100)]),
    }


def config_json(config: ModelConfig, style: Style = Style()) -> dict[str, Any]:
    """config.json of a model in this style."""
    rope = {
        "rope_type": "default",
        "rope_theta": config.rope_theta,
        "partial_rotary_factor": config.rotary_dim / config.head_dim,
    }
    same = {
        field: getattr(config, field)
        for field in ModelConfig.__dataclass_fields__
        if field not in ("layer_types", "rotary_dim", "rope_theta", "eos_token_id")
    }
    text = same | {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": config.num_hidden_layers,
        "layer_types": list(config.layer_types),
        "rope_parameters": rope,
        "eos_token_id": config.eos_token_id[0],
        "hidden_act": "silu",
        "dtype": "bfloat16",
    }
    outer: dict[str, Any] = {"architectures": ["Qwen3_5ForCausalLM"]}
    if style.nested:
        outer = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5"}
        outer["text_config"] = text
    else:
        outer |= text
    if style.naming != "dense":
        outer["quantization_config"] = quantization_json(config, style)
    return outer


def quantization_json(config: ModelConfig, style: Style) -> dict[str, Any]:
    """The quantisation record that agrees with the style; dense linears are excluded by name."""
    dense = [
        style.prefix + module if module.split(".")[0] not in ("lm_head", "mtp") else module
        for name, spec in tensor_specs(config).items()
        if spec.kind == "linear" and not style.quantised(module := name.removesuffix(".weight"))
    ]
    weights = {"num_bits": 4, "type": "float", "group_size": 16}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    if style.naming == "modelopt":
        record = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
        return record | {"config_groups": groups, "ignore": dense, "exclude_modules": dense}
    record = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}
    return record | {"config_groups": groups, "ignore": dense, "quantization_status": "compressed"}


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def write_tensors(folder: Path, tensors: Mapping[str, np.ndarray], shards: int = 1) -> None:
    """model.safetensors, or shards with an index; tensors are dealt out in turn."""
    if shards == 1:
        save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    weight_map = {tensor: names[i % shards] for i, tensor in enumerate(tensors)}
    for name in names:
        part = {t: array for t, array in tensors.items() if weight_map[t] == name}
        save_file(part, folder / name, metadata={"format": "pt"})
    total = sum(array.nbytes for array in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    write_json(folder / "model.safetensors.index.json", index)


def write_checkpoint(
    folder: Path, config: ModelConfig = SMALL, style: Style = Style(), seed: int = 0
) -> Path:
    """Writes config.json, generation_config.json and the weights; no tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config_json(config, style))
    write_json(folder / "generation_config.json", {"eos_token_id": list(config.eos_token_id)})
    write_tensors(folder, stored_tensors(config, style, seed), style.shards)
    return folder
