"""y = x W^T for dense and NVFP4 weights: layouts, packing, reference, handlers."""

from onecat_jax.custom_calls.linear.build import build_linear
from onecat_jax.custom_calls.linear.call import linear
from onecat_jax.custom_calls.linear.routes import LinearDescriptor, LinearRoute, plan
from onecat_jax.custom_calls.linear.weights import (
    NVFP4,
    Dense,
    DenseTensor,
    Layer,
    Linear,
    NVFP4Tensor,
    pick,
)

__all__ = [
    "NVFP4",
    "Dense",
    "DenseTensor",
    "Layer",
    "Linear",
    "LinearDescriptor",
    "LinearRoute",
    "NVFP4Tensor",
    "build_linear",
    "linear",
    "pick",
    "plan",
]
