"""The dense Qwen3.5 / 3.6 / 3.8 text model: gated DeltaNet layers with a gated full-attention layer between them."""

from onecat_jax.models.qwen3_5.build import build_params
from onecat_jax.models.qwen3_5.config import ModelConfig
from onecat_jax.models.qwen3_5.forward import StepBatch, forward, logits
from onecat_jax.models.qwen3_5.options import ForwardOptions
from onecat_jax.models.qwen3_5.params import tensor_specs
from onecat_jax.models.qwen3_5.weights import Params

__all__ = [
    "ForwardOptions",
    "ModelConfig",
    "Params",
    "StepBatch",
    "build_params",
    "forward",
    "logits",
    "tensor_specs",
]
