"""Static choices of a draft's passes."""

from dataclasses import dataclass
from functools import cached_property

import jax.numpy as jnp

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.models.dflash.config import DFlashConfig
from onecat_jax.sharding import Shards


@dataclass(frozen=True)
class DraftOptions:
    """Hashable, so that it can be a static argument of a jitted function."""

    config: DFlashConfig
    dtype: str  # compute dtype of activations: "float32", "float16" or "bfloat16"
    policy: Policy
    shards: Shards
    max_len: int  # positions of the longest sequence; a block may reach beyond it

    @cached_property
    def local(self) -> DFlashConfig:
        """The configuration with the heads and features of one rank."""
        return self.config.local(self.shards.size)

    @property
    def compute_dtype(self) -> jnp.dtype:
        return jnp.dtype(self.dtype)

    @property
    def eps(self) -> float:
        """Of every norm."""
        return self.config.rms_norm_eps
