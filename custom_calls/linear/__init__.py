"""y = x W^T for dense, NVFP4, FP8 and INT4 weights: layouts, packing, reference, handlers."""

from onecat_jax.custom_calls.linear.build import build_linear
from onecat_jax.custom_calls.linear.call import linear, look_up
from onecat_jax.custom_calls.linear.reference import exact_matrix
from onecat_jax.custom_calls.linear.routes import (
    KINDS,
    LinearDescriptor,
    LinearRoute,
    WeightKind,
    plan,
)
from onecat_jax.custom_calls.linear.weights import (
    FP8,
    INT4,
    NVFP4,
    Dense,
    DenseTensor,
    FP8Tensor,
    HostMatrix,
    INT4Tensor,
    Layer,
    Linear,
    NVFP4Tensor,
    pick,
)

__all__ = [
    "FP8",
    "INT4",
    "KINDS",
    "NVFP4",
    "Dense",
    "DenseTensor",
    "FP8Tensor",
    "HostMatrix",
    "INT4Tensor",
    "Layer",
    "Linear",
    "LinearDescriptor",
    "LinearRoute",
    "NVFP4Tensor",
    "WeightKind",
    "build_linear",
    "exact_matrix",
    "linear",
    "look_up",
    "pick",
    "plan",
]
