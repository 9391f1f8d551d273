"""The routes of the gated delta rule, and what each of them supports."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from onecat_jax.custom_calls.dispatch import Candidate, Policy, Route, Target, choose
from onecat_jax.custom_calls.gdn.rows import BLOCK_ROWS, GDNShape

CPU = "cpu handler"
GPU = "gpu handler"  # of few rows, the same on all GPUs
SM80_CHUNKS, SM70_CHUNKS = "sm_80 chunks", "sm_70 chunks"
LAYOUT_OF_ROUTE = {SM80_CHUNKS: "m16n8k16", SM70_CHUNKS: "m8n8k4"}
CHUNKS = "library chunks"

_MAX_DIM, _DIM_MULTIPLE = 256, 16
_WIDTHS = (2, 3, 4)
_GPU_DIM, _GPU_WIDTH = 128, 4


@dataclass(frozen=True)
class GDNDescriptor:
    """What a route has to know about a call. Shapes are local ones (of one device)."""

    rows: int  # T
    shape: GDNShape
    width: int  # taps of the convolution
    window: Any  # dtype
    dtype: Any = "float32"  # of the new rows

    def __str__(self) -> str:
        s = self.shape
        heads = f"{s.key_heads} x {s.key_dim} and {s.value_heads} x {s.value_dim} heads"
        types = f"{jnp.dtype(self.dtype).name} with {jnp.dtype(self.window).name} windows"
        return f"{self.rows} rows of {heads}, {types}"


def plan(descriptor: GDNDescriptor, policy: Policy = Policy(), *, operator: str = "gdn") -> Route:
    """The route of a call, with the reasons why faster ones declined.

    Args:
      descriptor: what is called.
      policy: which routes may be taken.
      operator: a key of ROUTES.

    Raises:
      EngineError: in strict mode, when only plain JAX is left.
    """
    return choose(operator, descriptor, ROUTES[operator], policy)


def _decline_cpu(d: GDNDescriptor, target: Target) -> str | None:
    if target.platform != "cpu":
        return f"it runs on CPU, the target is {target}"
    if d.rows > BLOCK_ROWS:
        return f"it takes up to {BLOCK_ROWS} rows, there are {d.rows}"
    for dim in (d.shape.key_dim, d.shape.value_dim):
        if dim > _MAX_DIM or dim % _DIM_MULTIPLE:
            return f"head dims must be multiples of {_DIM_MULTIPLE} up to {_MAX_DIM}, one is {dim}"
    if d.width not in _WIDTHS:
        return f"the convolution must have 2 to 4 taps, it has {d.width}"
    return _decline_window(d)


def _decline_window(d: GDNDescriptor) -> str | None:
    if jnp.dtype(d.window) not in (jnp.float32, jnp.float16, jnp.bfloat16):
        return f"windows must be float32, float16 or bfloat16, they are {jnp.dtype(d.window).name}"
    return None


def _decline_gpu(d: GDNDescriptor, target: Target) -> str | None:
    if target.platform != "gpu" or target.capability < 70:
        return f"it needs compute capability 7.0 or later, the target is {target}"
    if d.rows > BLOCK_ROWS:
        return f"it takes up to {BLOCK_ROWS} rows, there are {d.rows}"
    return _decline_shape(d)


def _decline_sm80_chunks(d: GDNDescriptor, target: Target) -> str | None:
    if target.platform != "gpu" or target.capability < 80:
        return f"it needs compute capability 8.0 or later, the target is {target}"
    return _decline_gpu_chunks(d)


def _decline_sm70_chunks(d: GDNDescriptor, target: Target) -> str | None:
    if target.platform != "gpu" or not 70 <= target.capability <= 72:
        return f"it needs compute capability 7.0 to 7.2, the target is {target}"
    return _decline_gpu_chunks(d)


def _decline_gpu_chunks(d: GDNDescriptor) -> str | None:
    if d.rows <= BLOCK_ROWS:
        return f"it takes more than {BLOCK_ROWS} rows, there are {d.rows}"
    return _decline_shape(d)


def _decline_shape(d: GDNDescriptor) -> str | None:
    for dim in (d.shape.key_dim, d.shape.value_dim):
        if dim != _GPU_DIM:
            return f"head dims must be {_GPU_DIM}, one is {dim}"
    if d.width != _GPU_WIDTH:
        return f"the convolution must have {_GPU_WIDTH} taps, it has {d.width}"
    names = [jnp.dtype(t).name for t in (d.dtype, d.window)]
    if names != ["float16", "float16"]:
        return f"rows and windows must be float16, they are {names[0]} and {names[1]}"
    return None


def _decline_chunks(d: GDNDescriptor, target: Target) -> str | None:
    """Matrix products of the library over chunks of 64: plain JAX, and what long inputs are meant to take."""
    if d.rows > BLOCK_ROWS:
        return None
    return f"it takes more than {BLOCK_ROWS} rows, there are {d.rows}"


_GPU, _CPU, _CHUNKS = (
    Candidate(GPU, _decline_gpu),
    Candidate(CPU, _decline_cpu),
    Candidate(CHUNKS, _decline_chunks),
)
ROUTES = {
    "gdn": (
        _GPU,
        Candidate(SM80_CHUNKS, _decline_sm80_chunks),
        Candidate(SM70_CHUNKS, _decline_sm70_chunks),
        _CPU,
        _CHUNKS,
    ),
    "gdn verify": (_GPU, _CPU, _CHUNKS),
    "gdn commit": (_GPU, _CPU, _CHUNKS),
    "gdn and gated norm": (_GPU,),
}
