"""The static half of a model, and loading it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jax import Array

from onecat_jax.compile_cache import enable_compile_cache
from onecat_jax.config import EngineConfig
from onecat_jax.loading import Checkpoint
from onecat_jax.loading.cache_scales import find_cache_scales
from onecat_jax.loading.formats import Source
from onecat_jax.loading.ranks import check_ranks
from onecat_jax.loading.sources import find_sources
from onecat_jax.loading.weight_sizes import format_on_device
from onecat_jax.model_loader import load_model
from onecat_jax.models import registry
from onecat_jax.models.qwen3_5 import ForwardOptions, ModelConfig, Params
from onecat_jax.sharding import Placement
from onecat_jax.steps import StepOptions
from onecat_jax.text import Tokenizer

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Model:
    """Everything about a model that isn't an array. Hashable: a static argument of jit, or closed over.

    Attributes:
      forward: configuration, compute dtype, kernel policy, ranks.
      placement: the devices that the weights lie on.
      vocab_size: ids from here on are padding of the embedding table and never sampled.
      banned: ranges [first, end) of further ids that are never sampled: ids without a token, mask placeholders.
      eos_ids: ids that end a sequence unless the settings ignore them.
      quantised: (canonical name, format) of the weights that lie quantised on the devices.
      cache_scales: whether the checkpoint stores scales of a float8 cache, which functions on weights and states don't apply.
    """

    forward: ForwardOptions
    placement: Placement
    vocab_size: int
    banned: Ranges
    eos_ids: tuple[int, ...]
    quantised: frozenset[tuple[str, str]]
    cache_scales: bool = False

    @property
    def config(self) -> ModelConfig:
        """Geometry of the checkpoint."""
        return self.forward.config

    @property
    def dtype(self) -> str:
        """Compute dtype of activations."""
        return self.forward.dtype

    @property
    def max_length(self) -> int:
        """Tokens of one sequence at most: what the checkpoint was made for."""
        return self.config.max_position_embeddings

    @property
    def least_rows(self) -> int:
        """Rows that programs are padded to."""
        return self.forward.least_rows

    def banned_mask(self) -> Array:
        """bool [V], True for ids that are never sampled."""
        ids = jnp.arange(self.config.vocab_size)
        mask = jnp.zeros(ids.shape, bool)
        for first, end in self.banned:
            mask |= (ids >= first) & (ids < end)
        return mask

    def steps(self, count: int) -> StepOptions:
        """Options of programs with up to `count` decode steps."""
        return StepOptions(self.forward, self.vocab_size, count)


def load(
    model: str | Path = "tiny",
    *,
    dtype: str = "auto",
    backend: str = "auto",
    strict: bool = False,
    tensor_parallel_size: int = 1,
) -> tuple[Model, Params]:
    """Reads a checkpoint. As `LLM` does, it has JAX keep compiled programs on disk, unless a folder is configured already.

    Args:
      model: "tiny" (embedded), a checkpoint folder, or a Hugging Face name.
      dtype: compute dtype; "auto" is float32 on CPU and float16 on GPU.
      backend: "auto", or "plain" for plain JAX everywhere.
      strict: refuse where an operator would fall back to plain JAX.
      tensor_parallel_size: devices that share the weights.

    Returns:
      the static model and its weights on the device. The weights' tree depends on model and arguments alone, so another
      checkpoint of the same shapes and formats takes their place without a new trace.

    Raises:
      CheckpointError, ModelConfigError, EngineError: each says what to do.
    """
    config = EngineConfig.from_arguments(
        {
            "dtype": dtype,
            "backend": backend,
            "strict": strict,
            "tensor_parallel_size": tensor_parallel_size,
        }
    )
    enable_compile_cache()
    checkpoint = Checkpoint.open(model)
    tokenizer = Tokenizer.from_directory(checkpoint.root)
    family = registry.resolve(checkpoint.config)
    geometry = family.read_config(checkpoint.config)
    sources = find_sources(checkpoint, family.tensor_specs(geometry))
    check_ranks(geometry, sources, tensor_parallel_size)
    placement = Placement.of(tensor_parallel_size)
    loaded = load_model(checkpoint, sources, geometry, config, lambda *_: None, placement)
    size = min(geometry.vocab_size, tokenizer.vocab_size)
    described = Model(
        forward=loaded.options,
        placement=placement,
        vocab_size=size,
        banned=_ranges(tokenizer.banned_mask(size)),
        eos_ids=tokenizer.eos_ids,
        quantised=quantised(sources),
        cache_scales=not find_cache_scales(checkpoint).trivial,
    )
    return described, loaded.params


def quantised(sources: Mapping[str, Source]) -> frozenset[tuple[str, str]]:
    """(canonical name, what it is on a device) of everything that isn't dense there."""
    found = ((name, format_on_device(name, source), source) for name, source in sources.items())
    return frozenset(
        (name, f"{form.upper()} {source.variant}".rstrip())
        for name, form, source in found
        if form != "dense"
    )


def _ranges(mask: np.ndarray) -> Ranges:
    """Runs of True in a mask as (first, end)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return tuple((int(a), int(b)) for a, b in edges.reshape(-1, 2))
