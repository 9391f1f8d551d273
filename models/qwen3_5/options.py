"""Static choices of a forward pass."""

from dataclasses import dataclass
from functools import cached_property

import jax.numpy as jnp

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.models.qwen3_5.config import ModelConfig
from onecat_jax.sharding import WHOLE, Shards


@dataclass(frozen=True)
class ForwardOptions:
    """Hashable, so that it can be a static argument of a jitted function."""

    config: ModelConfig
    dtype: str  # compute dtype of activations: "float32", "float16" or "bfloat16"
    policy: Policy
    shards: Shards = WHOLE

    @cached_property
    def local(self) -> ModelConfig:
        """The configuration with the heads, features and ids of one rank: the shapes that a program sees."""
        return self.config.local(self.shards.size)

    @property
    def compute_dtype(self) -> jnp.dtype:
        return jnp.dtype(self.dtype)

    @property
    def eps(self) -> float:
        """Of every norm."""
        return self.config.rms_norm_eps

    @property
    def least_rows(self) -> int:
        """Rows that programs are padded to: plain JAX rounds one row differently from several."""
        return 2 if self.policy.backend == "plain" else 1
