"""The model families and the architecture names they answer to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from onecat_jax.errors import ModelConfigError
from onecat_jax.models.dflash.reader import ARCHITECTURES as DRAFT_ARCHITECTURES
from onecat_jax.models.qwen3_5 import config as qwen3_5_config
from onecat_jax.models.qwen3_5 import params as qwen3_5_params
from onecat_jax.models.spec import TensorSpecs


@dataclass(frozen=True)
class Family:
    """One family: how to read its configuration, and what tensors a checkpoint of it holds."""

    name: str
    architectures: tuple[str, ...]
    model_types: tuple[str, ...]
    read_config: Callable[[Mapping[str, Any]], qwen3_5_config.ModelConfig]
    tensor_specs: Callable[[qwen3_5_config.ModelConfig], TensorSpecs]


FAMILIES = (
    Family(
        name="qwen3_5",
        architectures=qwen3_5_config.ARCHITECTURES,
        model_types=qwen3_5_config.MODEL_TYPES,
        read_config=qwen3_5_config.ModelConfig.from_hf,
        tensor_specs=qwen3_5_params.tensor_specs,
    ),
)


def supported_architectures() -> tuple[str, ...]:
    return tuple(name for family in FAMILIES for name in family.architectures)


def resolve(config: Mapping[str, Any]) -> Family:
    """The family of a config.json: by `architectures`, or by `model_type` where a file has none.

    Raises:
      ModelConfigError: no family answers; the message lists the supported architectures.
    """
    listed = config.get("architectures")
    names = [str(name) for name in listed] if isinstance(listed, list) else []
    kind = str(config.get("model_type"))
    for family in FAMILIES:
        if set(names) & set(family.architectures) or (not names and kind in family.model_types):
            return family
    found = ", ".join(names) or f"none (model_type {config.get('model_type')!r})"
    if set(names) & set(DRAFT_ARCHITECTURES):
        raise ModelConfigError(
            f"config.json: architecture {found} is a draft, which proposes tokens for a model; name the model as the model, "
            "and the draft in speculative_config: {'method': 'dflash', 'model': FOLDER}"
        )
    raise ModelConfigError(
        f"config.json: architecture {found} isn't implemented; implemented: "
        f"{', '.join(supported_architectures())}"
    )
