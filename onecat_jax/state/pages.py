"""Keys and values in pages, all layers in one flat array."""

from dataclasses import dataclass
from functools import partial

import jax
from jax import Array


@partial(jax.tree_util.register_dataclass, data_fields=["k", "v"], meta_fields=["pages"])
@dataclass(frozen=True)
class PagedKV:
    """Keys (after norm and rotary embedding) and values of all attention layers."""

    k: Array  # [layers * X, S, J, D]
    v: Array  # [layers * X, S, J, D]
    pages: int  # X, pages per layer
