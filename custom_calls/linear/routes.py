"""The routes of the linear and what each of them supports."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax.numpy as jnp
import numpy as np

from onecat_jax.custom_calls.dispatch import PLAIN, Candidate, Policy, Route, Target, choose

K_MULTIPLE = 32  # of every packed layout

HANDLER_CPU = "cpu handler"
LAYOUT_OF_ROUTE = {
    HANDLER_CPU: "cpu16",
    "sm_70 handler": "m8n8k4",
    "sm_80 handler": "m16n8k16",
    PLAIN: "rows",
}
LIBRARY = "library dot"
FEW_ROWS = "sm_80 handler, library dot for many rows"
LARGE_SHARED_MEMORY = (80, 90, 100, 103)  # compute capabilities

WeightKind = Literal["nvfp4", "fp8", "int4", "dense"]
KINDS: tuple[WeightKind, ...] = get_args(WeightKind)


@dataclass(frozen=True)
class LinearDescriptor:
    """What a route has to know about a linear. Shapes are local ones (of one device)."""

    weight: WeightKind
    n: int
    k: int
    dtype: Any  # of the activations; of the weights too where they are dense

    def __str__(self) -> str:
        return f"{self.weight} [{self.n}, {self.k}] with {jnp.dtype(self.dtype).name} activations"


@dataclass(frozen=True)
class LinearRoute:
    """What weights are packed for: a policy, resolved on a target when a weight is built."""

    policy: Policy = Policy()
    separate: bool = False  # dense weights stay separate arrays per layer: for layer loops unrolled in plain JAX on CPU

    @property
    def target(self) -> Target:
        return self.policy.resolved_target()

    def plan(self, descriptor: LinearDescriptor) -> Route:
        return plan(descriptor, self.policy)


def plan(descriptor: LinearDescriptor, policy: Policy = Policy()) -> Route:
    """The route of a linear, with the reasons why faster ones declined.

    Raises:
      EngineError: in strict mode, when only plain JAX is left.
    """
    candidates = DENSE_ROUTES if descriptor.weight == "dense" else PACKED_ROUTES
    return choose("linear", descriptor, candidates, policy)


def dense_dtype(stored: Iterable[Any], dtype: Any, route: str) -> np.dtype:
    """The dtype that dense siblings of one layer are placed in: a 16-bit dtype that all of them have where the handler takes it
    without rounding, which gives the same values for half the bytes; else the compute dtype.

    Args:
      stored: the siblings' dtypes.
      dtype: of the activations.
      route: the name of a dense route.
    """
    found = {np.dtype(each) for each in stored}
    exact = route == HANDLER_CPU and np.dtype(dtype) == np.float32 and len(found) == 1
    return found.pop() if exact and next(iter(found)).itemsize == 2 else np.dtype(dtype)


def _decline_cpu(d: LinearDescriptor, target: Target) -> str | None:
    if target.platform != "cpu":
        return f"it runs on CPU, the target is {target}"
    return None if d.weight == "dense" else _decline_k(d)


def _decline_library(d: LinearDescriptor, target: Target) -> str | None:
    return None if target.platform == "gpu" else f"it is the route of GPUs, the target is {target}"


def _decline_sm70(d: LinearDescriptor, target: Target) -> str | None:
    if target.platform != "gpu" or not 70 <= target.capability < 80:
        return f"it needs compute capability 7.0 to 7.9, the target is {target}"
    return _decline_gpu(d)


def _decline_sm80(d: LinearDescriptor, target: Target) -> str | None:
    if target.platform != "gpu" or target.capability < 80:
        return f"it needs compute capability 8.0 or later, the target is {target}"
    return _decline_gpu(d)


def _decline_few_rows(d: LinearDescriptor, target: Target) -> str | None:
    if target.platform == "gpu" and target.capability not in LARGE_SHARED_MEMORY:
        return f"it needs a GPU with 163 KB of shared memory per block, the target is {target}"
    return _decline_sm80(d, target)


def _decline_gpu(d: LinearDescriptor) -> str | None:
    if jnp.dtype(d.dtype) != jnp.float16:
        return f"activations must be float16, they are {jnp.dtype(d.dtype).name}: casting would change results"
    return _decline_k(d)


def _decline_k(d: LinearDescriptor) -> str | None:
    if d.k % K_MULTIPLE:
        return f"K must be a multiple of {K_MULTIPLE}, it is {d.k}"
    return None


PACKED_ROUTES = (
    Candidate("sm_80 handler", _decline_sm80),
    Candidate("sm_70 handler", _decline_sm70),
    Candidate(HANDLER_CPU, _decline_cpu),
)
DENSE_ROUTES = (
    Candidate(FEW_ROWS, _decline_few_rows),
    Candidate(HANDLER_CPU, _decline_cpu),
    Candidate(LIBRARY, _decline_library),
)
