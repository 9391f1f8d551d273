"""Engine arguments: the keyword arguments of `LLM`, checked once."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from onecat_jax.checks import flag, member, number, whole
from onecat_jax.errors import EngineError, shown
from onecat_jax.speculation.config import SpeculativeConfig

DTYPES = ("auto", "float32", "float16", "bfloat16")
_DTYPE_NAMES = {"half": "float16", "float": "float32"}  # spellings that vLLM's users know
KV_DTYPES = ("auto", "float32", "float16", "fp8_e4m3", "fp8_e5m2")
_LATER = {
    "enable_prefix_caching": (False, None),
    "mamba_block_size": (None,),
}


@dataclass(frozen=True)
class EngineConfig:
    """How an engine runs. Names are vLLM's.

    Attributes:
      dtype: compute dtype; auto is float32 on CPU and float16 on GPU. "half" and "float" are understood.
      kv_cache_dtype: storage of keys and values; auto is the compute dtype.
      tensor_parallel_size: devices that share the model, each with its part of every layer.
      max_model_len: prompt and new tokens of one request at most; None takes the checkpoint's limit, or less if that
        doesn't fit.
      max_num_seqs: requests decoded together.
      max_num_batched_tokens: tokens of one prefill chunk at most.
      block_size: tokens per page of the key/value cache.
      speculative_config: who drafts tokens ahead, see SpeculativeConfig; None for nobody.
      gpu_memory_utilization: share of each device's memory that the engine may plan with.
      seed: where requests without a seed of their own get theirs from.
      strict: refuse to start where an operator would fall back to plain JAX.
      backend: "auto", or "plain" for plain JAX everywhere.

    Raises:
      EngineError: a value out of range or not implemented, with the value and what is allowed.
    """

    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = 1
    max_model_len: int | None = None
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 512
    block_size: int = 16
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool | None = None
    mamba_block_size: int | None = None
    speculative_config: Mapping[str, Any] | None = None
    seed: int = 0
    strict: bool = False
    backend: Literal["auto", "plain"] = "auto"

    def __post_init__(self) -> None:
        if isinstance(self.dtype, str):
            object.__setattr__(self, "dtype", _DTYPE_NAMES.get(self.dtype, self.dtype))
        member("dtype", self.dtype, DTYPES)
        member("kv_cache_dtype", self.kv_cache_dtype, KV_DTYPES)
        member("backend", self.backend, ("auto", "plain"))
        for name, done in _LATER.items():
            value = getattr(self, name)
            if not any(value is each for each in done):
                raise EngineError(
                    f"{name}={shown(value)} isn't implemented yet; leave it out or pass {done[0]!r}."
                )
        if self.speculative_config is not None:
            SpeculativeConfig.from_mapping(self.speculative_config)
        whole("tensor_parallel_size", self.tensor_parallel_size, 1)
        if self.max_model_len is not None:
            whole("max_model_len", self.max_model_len, 2)
        whole("max_num_seqs", self.max_num_seqs, 1)
        whole("max_num_batched_tokens", self.max_num_batched_tokens, 64)
        whole("block_size", self.block_size, 16)
        whole("seed", self.seed, 0, 2**64 - 1)
        flag("strict", self.strict)
        if self.block_size % 16:
            raise EngineError(f"block_size is {self.block_size}; a multiple of 16 is needed.")
        number("gpu_memory_utilization", self.gpu_memory_utilization, 0.0, 1.0, open_low=True)

    @property
    def speculation(self) -> SpeculativeConfig | None:
        """The speculative config, read."""
        given = self.speculative_config
        return None if given is None else SpeculativeConfig.from_mapping(given)

    @property
    def uses_mtp(self) -> bool:
        """Whether the checkpoint's MTP head drafts."""
        return self.speculation is not None and self.speculation.method == "mtp"

    def compute_dtype(self, platform: str) -> str:
        """Compute dtype by name: auto is float32 on CPU and float16 elsewhere (what an SM70 multiplies fast)."""
        if self.dtype != "auto":
            return self.dtype
        return "float32" if platform == "cpu" else "float16"

    @staticmethod
    def from_arguments(arguments: Mapping[str, Any]) -> "EngineConfig":
        """Keyword arguments -> config.

        Raises:
          EngineError: an unknown argument, with the known ones.
        """
        known = [f.name for f in fields(EngineConfig)]
        unknown = sorted(set(arguments) - set(known))
        if unknown:
            raise EngineError(f"unknown engine argument {unknown[0]!r}; known: {', '.join(known)}.")
        return EngineConfig(**arguments)
