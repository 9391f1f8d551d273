"""Scales of keys and values for a float8 cache, which some checkpoints store: key = cached key * k_scale.

Names, below an attention module: k_proj.k_scale and v_proj.v_scale (ModelOpt), k_scale and v_scale (compressed-tensors),
k_proj.output_scale and v_proj.output_scale (Quark), kv_scale for both (older exporters).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from onecat_jax.errors import CheckpointError
from onecat_jax.loading.checkpoint import Checkpoint
from onecat_jax.loading.dtypes import DENSE
from onecat_jax.loading.names import canonical_index

CACHE_SCALES = frozenset({"k_scale", "v_scale", "kv_scale", "output_scale"})
"""Last words of their names."""

_KEY, _VALUE = 0, 1
_MEANING = {
    "k_proj.k_scale": (_KEY,),
    "v_proj.v_scale": (_VALUE,),
    "k_scale": (_KEY,),
    "v_scale": (_VALUE,),
    "k_proj.output_scale": (_KEY,),
    "v_proj.output_scale": (_VALUE,),
    "kv_scale": (_KEY, _VALUE),
}


@dataclass(frozen=True)
class CacheScales:
    """What is stored.

    Attributes:
      layers: layer -> (scale of keys, scale of values); layers that store none are left out, a scale that isn't stored is 1.
    """

    layers: Mapping[int, tuple[float, float]]

    @property
    def trivial(self) -> bool:
        """Whether they change nothing."""
        return all(scales == (1.0, 1.0) for scales in self.layers.values())

    def of(self, layer: int) -> tuple[float, float]:
        """Of keys and values of one layer."""
        return self.layers.get(layer, (1.0, 1.0))


def find_cache_scales(checkpoint: Checkpoint) -> CacheScales:
    """Reads them; those of the MTP head are left alone.

    Raises:
      CheckpointError: one isn't a single positive finite number, or two names give different ones.
    """
    layers: dict[int, dict[int, float]] = {}
    for stored, layer, means in _stored(checkpoint):
        value = _value(checkpoint, stored)
        for which in means:
            known = layers.setdefault(layer, {}).setdefault(which, value)
            if known != value:
                raise CheckpointError(
                    f"{checkpoint.root}: {stored} is {value}, another tensor says {known} about the same cache; one is needed"
                )
    return CacheScales(
        {
            layer: (found.get(_KEY, 1.0), found.get(_VALUE, 1.0))
            for layer, found in sorted(layers.items())
        }
    )


def _stored(checkpoint: Checkpoint) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """(stored name, layer, what it scales)."""
    for name, stored in canonical_index(checkpoint.tensors).items():
        head, separator, tail = name.partition(".self_attn.")
        means = _MEANING.get(tail)
        group, _, layer = head.partition(".")
        if separator and means and group == "layers" and layer.isdigit():
            yield stored, int(layer), means


def _value(checkpoint: Checkpoint, stored: str) -> float:
    info = checkpoint.tensors[stored]
    if info.dtype not in DENSE or info.shape not in ((), (1,)):
        raise CheckpointError(
            f"{checkpoint.root}: {stored} ({info.file.name}, {info.dtype} {list(info.shape)}) scales a key/value cache; one "
            f"number of {' or '.join(DENSE)} is needed"
        )
    value = float(checkpoint.array(stored).reshape(()))
    if not (np.isfinite(value) and value > 0):
        raise CheckpointError(
            f"{checkpoint.root}: {stored} ({info.file.name}) is {value}; a finite number above zero is needed"
        )
    return value
