"""Static choices of a forward pass."""

from dataclasses import dataclass

import jax.numpy as jnp

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.models.qwen3_5.config import ModelConfig


@dataclass(frozen=True)
class ForwardOptions:
    """Hashable, so that it can be a static argument of a jitted function."""

    config: ModelConfig
    dtype: str  # compute dtype of activations: "float32", "float16" or "bfloat16"
    policy: Policy

    @property
    def compute_dtype(self) -> jnp.dtype:
        return jnp.dtype(self.dtype)

    @property
    def eps(self) -> float:
        """Of every norm."""
        return self.config.rms_norm_eps
