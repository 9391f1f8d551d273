"""A functional JAX inference engine for hybrid-attention language models on NVIDIA V100 and newer."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onecat_jax import functional
    from onecat_jax.errors import OnecatError
    from onecat_jax.llm import LLM
    from onecat_jax.outputs import CompletionOutput, RequestOutput
    from onecat_jax.sampling_params import SamplingParams

__version__ = "0.1.0"

# Resolved on first use: the command line's help and the parsers must not wait for JAX.
_HOME = {
    "LLM": "onecat_jax.llm",
    "SamplingParams": "onecat_jax.sampling_params",
    "RequestOutput": "onecat_jax.outputs",
    "CompletionOutput": "onecat_jax.outputs",
    "OnecatError": "onecat_jax.errors",
}
__all__ = [
    "LLM",
    "CompletionOutput",
    "OnecatError",
    "RequestOutput",
    "SamplingParams",
    "functional",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name == "functional":
        return import_module("onecat_jax.functional")
    raise AttributeError(f"module 'onecat_jax' has no attribute {name!r}")
