"""The routes of attention and of writing keys and values, and what each of them supports."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from onecat_jax.custom_calls.dispatch import Candidate, Policy, Route, Target, choose
from onecat_jax.custom_calls.paged_attention.pages import SHORT_ROWS

CPU = "cpu handler"
TILES = "library tiles"
GPU = "gpu handler"  # of writing, the same on all GPUs
SM70, SM80 = "sm_70 handler", "sm_80 handler"
LAYOUT_OF_ROUTE = {SM70: "m8n8k4", SM80: "m16n8k16"}

_MAX_DIM, _DIM_MULTIPLE, _MAX_GROUP = 256, 16, 64
_ROW_TYPES = ("float32", "float16", "bfloat16")
_CACHE_TYPES = (*_ROW_TYPES, "float8_e4m3fn", "float8_e5m2")
_GPU_DIMS, _GPU_MAX_GROUP, _GPU_PAGE_MULTIPLE = (128, 256), 12, 16
_WRITE_MULTIPLE = 8
_GPU_PREFILL_CACHE_TYPES = ("float16", "float8_e4m3fn", "float8_e5m2")
_GPU_CACHE_TYPES = ("float32", *_GPU_PREFILL_CACHE_TYPES)


@dataclass(frozen=True)
class AttentionDescriptor:
    """What a route has to know about a call. Shapes are local ones (of one device)."""

    rows: int  # T
    heads: int
    kv_heads: int
    dim: int
    page: int  # tokens
    dtype: Any  # of the new rows
    cache: Any  # dtype

    def __str__(self) -> str:
        return (
            f"{self.rows} {jnp.dtype(self.dtype).name} rows of {self.heads} over {self.kv_heads} heads of {self.dim}, "
            f"{jnp.dtype(self.cache).name} cache in pages of {self.page}"
        )


def plan(operator: str, descriptor: AttentionDescriptor, policy: Policy = Policy()) -> Route:
    """The route of an operator of ROUTES, with the reasons why faster ones declined.

    Raises:
      EngineError: in strict mode, when only plain JAX is left.
    """
    return choose(operator, descriptor, ROUTES[operator], policy)


def _decline_cpu(d: AttentionDescriptor, target: Target) -> str | None:
    if target.platform != "cpu":
        return f"it runs on CPU, the target is {target}"
    if d.dim > _MAX_DIM or d.dim % _DIM_MULTIPLE:
        return f"the head dim must be a multiple of {_DIM_MULTIPLE} up to {_MAX_DIM}, it is {d.dim}"
    if d.heads > _MAX_GROUP * d.kv_heads:
        return f"it takes up to {_MAX_GROUP} query heads per kv head, there are {d.heads // d.kv_heads}"
    return _decline_types(d)


def _decline_types(d: AttentionDescriptor) -> str | None:
    if (name := jnp.dtype(d.dtype).name) not in _ROW_TYPES:
        return f"new rows must be float32, float16 or bfloat16, they are {name}"
    return _decline_cache(d, _CACHE_TYPES)


def _decline_cache(d: AttentionDescriptor, types: tuple[str, ...]) -> str | None:
    name = jnp.dtype(d.cache).name
    return None if name in types else f"the cache must be one of {', '.join(types)}, it is {name}"


def _decline_sm70(d: AttentionDescriptor, target: Target) -> str | None:
    if target.platform != "gpu" or not 70 <= target.capability <= 72:
        return f"it needs compute capability 7.0 to 7.2, the target is {target}"
    return _decline_gpu(d)


def _decline_sm80(d: AttentionDescriptor, target: Target) -> str | None:
    if target.platform != "gpu" or target.capability < 80:
        return f"it needs compute capability 8.0 or later, the target is {target}"
    if target.capability in (86, 89) or target.capability >= 120:
        return f"it needs 130 KB of shared memory per block, which {target} doesn't have"
    return _decline_gpu(d)


def _decline_gpu(d: AttentionDescriptor) -> str | None:
    if d.dim not in _GPU_DIMS:
        return f"the head dim must be 128 or 256, it is {d.dim}"
    if d.heads > _GPU_MAX_GROUP * d.kv_heads:
        return f"it takes up to {_GPU_MAX_GROUP} query heads per kv head, there are {d.heads // d.kv_heads}"
    if d.page % _GPU_PAGE_MULTIPLE:
        return f"pages must be multiples of {_GPU_PAGE_MULTIPLE} tokens, they have {d.page}"
    if (name := jnp.dtype(d.dtype).name) != "float16":
        return f"new rows must be float16, they are {name}: casting would change results"
    short = d.rows <= SHORT_ROWS
    return _decline_cache(d, _GPU_CACHE_TYPES if short else _GPU_PREFILL_CACHE_TYPES)


def _decline_gpu_write(d: AttentionDescriptor, target: Target) -> str | None:
    if target.platform != "gpu" or target.capability < 70:
        return f"it needs compute capability 7.0 or later, the target is {target}"
    if d.kv_heads * d.dim % _WRITE_MULTIPLE:
        return f"heads * dim must be a multiple of {_WRITE_MULTIPLE}, they are {d.kv_heads * d.dim}"
    return _decline_types(d)


def _decline_heads(d: AttentionDescriptor, target: Target) -> str | None:
    if d.dim not in _GPU_DIMS:
        return f"the head dim must be 128 or 256, it is {d.dim}"
    if (name := jnp.dtype(d.dtype).name) != "float16":
        return f"rows must be float16, they are {name}"
    return _decline_gpu_write(d, target)


def _decline_tiles(d: AttentionDescriptor, target: Target) -> str | None:
    """Matrix products of the library over tiles of keys: plain JAX, and what long inputs are meant to take."""
    if d.rows > SHORT_ROWS:
        return None
    return f"it takes more than {SHORT_ROWS} rows, there are {d.rows}"


ROUTES = {
    "attention": (
        Candidate(SM80, _decline_sm80),
        Candidate(SM70, _decline_sm70),
        Candidate(CPU, _decline_cpu),
        Candidate(TILES, _decline_tiles),
    ),
    "norm, rotary embedding and key/value write": (Candidate(GPU, _decline_heads),),
    "key/value write": (
        Candidate(GPU, _decline_gpu_write),
        Candidate(CPU, _decline_cpu),
        Candidate(TILES, _decline_tiles),
    ),
}
