"""What a model needs on each device, group by group, before one weight is read; and the refusal when
it doesn't fit.

The paged cache takes what is left, at most what `max_num_seqs` requests of `max_model_len` tokens
fill and at least one such request. Everything else is fixed by the arguments.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import jax.numpy as jnp

from onecat_jax.custom_calls.dispatch import Policy
from onecat_jax.errors import CapacityError
from onecat_jax.loading.device_memory import DeviceMemory
from onecat_jax.loading.draft_plan import NO_PLAN, DraftPlan
from onecat_jax.loading.formats import Source
from onecat_jax.loading.weight_sizes import (
    MTP,
    WEIGHT_GROUPS,
    DeviceSizes,
    group_of,
    largest_slab,
)
from onecat_jax.models.qwen3_5.config import ModelConfig
from onecat_jax.sizes import gib
from onecat_jax.state import CacheShape

Field = Literal["max_model_len", "max_num_seqs"]
KV_STORAGE = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
HEADROOM = 256 * 2**20  # code, library workspaces, fragmentation


@dataclass(frozen=True)
class PlanRequest:
    """The engine arguments that decide memory. Lengths and pages are in tokens."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    compute_dtype: str = "float32"
    kv_dtype: str = "float32"
    mtp: bool = False  # whether the MTP head is placed on the device
    ranks: int = 1  # devices that share the model by tensor parallelism
    policy: Policy = Policy()  # which layouts weights are packed for
    draft: DraftPlan = NO_PLAN  # what speculative decoding adds

    @property
    def pages_per_request(self) -> int:
        return -(-self.max_model_len // self.block_size)

    @property
    def compute_itemsize(self) -> int:
        return jnp.dtype(self.compute_dtype).itemsize

    @property
    def sizes(self) -> DeviceSizes:
        """What weights take."""
        return DeviceSizes(self.compute_dtype, self.ranks, self.policy)

    @property
    def kv_storage(self) -> jnp.dtype:
        """The array dtype of kv_dtype, whose float8 names are vLLM's."""
        return jnp.dtype(KV_STORAGE.get(self.kv_dtype, self.kv_dtype))


@dataclass(frozen=True)
class Requirements:
    """Bytes that a model needs on each device under given arguments."""

    config: ModelConfig  # the whole model
    request: PlanRequest
    weights: Mapping[str, int]  # group -> bytes
    slab: int  # largest weight expanded for a matrix product

    @property
    def ranks(self) -> int:
        """Devices that share the model."""
        return self.request.ranks

    @cached_property
    def local(self) -> ModelConfig:
        """Heads, features and ids of one device."""
        return self.config.local(self.ranks)

    def cache_shape(self, pages: int) -> CacheShape:
        """Sizes of one device's state with so many pages per layer, page 0 included."""
        request = self.request
        return self.local.cache_shape(
            pages=pages,
            page_size=request.block_size,
            slots=request.max_num_seqs + 1,
            mtp=request.mtp,
        )

    @cached_property
    def fixed(self) -> dict[str, int]:
        """Group -> bytes of everything but the paged cache."""
        shape = self.cache_shape(0)
        state = shape.gdn_bytes(0)
        window = shape.gdn_bytes(self.request.compute_itemsize) - state
        groups = {name: size for name in WEIGHT_GROUPS if (size := self.weights.get(name, 0))}
        return groups | {
            "GDN state": state,
            "convolution window": window,
            "token history": shape.history_bytes,
            **self._draft(),
            "largest temporary": self.slab + self._activations(),
            "headroom": HEADROOM,
        }

    def _draft(self) -> dict[str, int]:
        """Group -> bytes of a draft model and of what its drafter keeps."""
        draft, request = self.request.draft, self.request
        state = draft.state(request.max_model_len).nbytes(request.max_num_seqs + 1)
        groups = {"draft model": draft.weights, "draft state": state}
        return {name: size for name, size in groups.items() if size}

    def _activations(self) -> int:
        """Logits, and the few rows-by-width buffers that live at once in one layer."""
        c, r = self.local, self.request
        widest = max(2 * c.intermediate_size, c.conv_dim + c.value_dim)
        attention = 2 * (c.num_attention_heads + c.num_key_value_heads) * c.head_dim
        row = 8 * c.hidden_size + 2 * r.compute_itemsize * max(widest, attention)
        row += 4 * r.draft.taps * c.hidden_size
        verified = r.max_num_seqs * r.draft.width
        kept = 0 if r.draft.width == 1 else verified * self._kept_row()
        logits = 2 * 4 * verified * c.vocab_size
        return logits + kept + max(r.max_num_batched_tokens, verified) * row

    def _kept_row(self) -> int:
        """Bytes of a verified row that all GDN layers keep until it is committed."""
        c = self.local
        gates = 4 * 2 * c.linear_num_value_heads
        return c.num_linear_layers * (c.conv_dim * self.request.compute_itemsize + gates)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all attention layers."""
        return self.cache_shape(1).kv_bytes(self.request.kv_storage.itemsize)

    def pages_within(self, available: int) -> int:
        """Pages per layer, page 0 included, that the rest holds; no more than can be used."""
        full = self.request.max_num_seqs * self.request.pages_per_request + 1
        left = available - sum(self.fixed.values())
        return full if self.page_bytes == 0 else min(full, max(left, 0) // self.page_bytes)

    @property
    def least(self) -> int:
        """Bytes with pages for one request of full length."""
        return sum(self.fixed.values()) + (self.request.pages_per_request + 1) * self.page_bytes

    def with_request(self, field: Field, value: int) -> "Requirements":
        """The same model under one changed argument."""
        if field == "max_model_len":
            return replace(self, request=replace(self.request, max_model_len=value))
        return replace(self, request=replace(self.request, max_num_seqs=value))


@dataclass(frozen=True)
class MemoryPlan:
    """A plan that fits. Bytes and sizes are those of each device.

    Attributes:
      groups: group -> bytes, the paged cache included.
      pages: pages per layer of the paged cache, page 0 included.
    """

    request: PlanRequest
    groups: Mapping[str, int]
    memory: DeviceMemory
    cache: CacheShape

    @property
    def ranks(self) -> int:
        """Devices that share the model."""
        return self.request.ranks

    @property
    def pages(self) -> int:
        return self.cache.pages

    @property
    def total(self) -> int:
        return sum(self.groups.values())

    @property
    def kv_tokens(self) -> int:
        """Tokens that the paged cache holds."""
        return (self.pages - 1) * self.request.block_size

    def table(self) -> str:
        """The plan as lines for people."""
        return _table(self.groups, self.total, self.memory, self.ranks)


def requirements(
    config: ModelConfig, sources: Mapping[str, Source], request: PlanRequest
) -> Requirements:
    """Adds up a checkpoint's tensors as they will lie on each device.

    Raises:
      EngineError: heads, features or ids don't divide; `check_ranks` says it better.
    """
    placed = {n: s for n, s in sources.items() if group_of(n, s) != MTP or request.mtp}
    weights = dict.fromkeys(WEIGHT_GROUPS, 0)
    for name, size in request.sizes.of(placed).items():
        weights[group_of(name, placed[name])] += size
    slab = largest_slab(placed, request.ranks) * request.compute_itemsize
    return Requirements(config, request, weights, slab)


def fit(needs: Requirements, memory: DeviceMemory) -> MemoryPlan:
    """Chooses the number of pages.

    Raises:
      CapacityError: not even one request of `max_model_len` tokens fits. The message holds the
        table and the largest `max_model_len` and `max_num_seqs` that would fit.
    """
    request = needs.request
    pages = needs.pages_within(memory.available)
    if needs.least > memory.available or pages < request.pages_per_request + 1:
        raise CapacityError(_refusal(needs, memory))
    groups = needs.fixed | {"KV cache": pages * needs.page_bytes}
    return MemoryPlan(request, groups, memory, needs.cache_shape(pages))


def largest(needs: Requirements, memory: DeviceMemory, field: Field, limit: int) -> int:
    """The largest `max_model_len` or `max_num_seqs` up to a limit that fits; 0 if none does."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        fits = needs.with_request(field, middle).least <= memory.available
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def _refusal(needs: Requirements, memory: DeviceMemory) -> str:
    groups = needs.fixed | {
        "KV cache, one request": needs.least - sum(needs.fixed.values()),
    }
    request = needs.request
    each = " on each device" if needs.ranks > 1 else ""
    devices = f"{needs.ranks} devices like {memory.device}" if each else memory.device
    head = (
        f"the model doesn't fit {devices}: {gib(needs.least)} needed{each} with max_model_len "
        f"{request.max_model_len} and max_num_seqs {request.max_num_seqs}, {gib(memory.available)} "
        "available"
    )
    return f"{head}; {_advice(needs, memory)}\n{_table(groups, needs.least, memory, needs.ranks)}"


def _advice(needs: Requirements, memory: DeviceMemory) -> str:
    request = needs.request
    length = largest(needs, memory, "max_model_len", request.max_model_len)
    seqs = largest(needs, memory, "max_num_seqs", request.max_num_seqs)
    options = []
    if length:
        options.append(f"max_model_len {length}")
    if seqs:
        options.append(f"max_num_seqs {seqs}")
    if options:
        return f"what would fit: {' or '.join(options)}"
    if largest(needs.with_request("max_num_seqs", 1), memory, "max_model_len", 1):
        return "what would fit: a smaller max_model_len together with a smaller max_num_seqs"
    return "no max_model_len fits: a device with more memory or a smaller checkpoint is needed"


def _table(groups: Mapping[str, int], total: int, memory: DeviceMemory, ranks: int) -> str:
    rows = [*groups.items(), ("total", total), ("available", memory.available)]
    lines = [f"  {name:<24}{gib(size):>12}" for name, size in rows]
    head = [f"  per device, {ranks} ranks"] if ranks > 1 else []
    return "\n".join([*head, *lines, f"  ({memory.source})"])
