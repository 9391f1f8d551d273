"""New weights in the place of loaded ones: a trainer's arrays by name, packed as the loader packs a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onecat_jax.config import EngineConfig
from onecat_jax.errors import CheckpointError
from onecat_jax.functional.arguments import described
from onecat_jax.functional.model import Model, quantised
from onecat_jax.loading import Checkpoint
from onecat_jax.loading.dtypes import DTYPES
from onecat_jax.loading.formats import Source
from onecat_jax.loading.safetensors_file import TensorInfo
from onecat_jax.loading.sources import find_sources
from onecat_jax.model_loader import load_model
from onecat_jax.models.qwen3_5 import Params, tensor_specs

_GIVEN = Path("the given weights")  # stands for a file in messages
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class _Arrays:
    """What a file is to a checkpoint."""

    named: Mapping[str, Any]

    def array(self, name: str) -> np.ndarray:
        """On the host, fetched when asked for."""
        return np.asarray(self.named[name])

    def will_read(self, name: str) -> None:
        """Nothing: fetching ahead would hold more of them on the host."""


def build_params(model: Model, named: Mapping[str, Any]) -> Params:
    """Weights for `model` from arrays by name. Runs on the host, not inside jit.

    The result has the tree, shapes and dtypes that `load` gave, so a function that was traced with those takes it without a new
    trace. Every tensor of the checkpoint must be there, stored in the same format: dense linears as float32, float16 or
    bfloat16 [N, K], NVFP4 ones as the tensors of a ModelOpt or compressed-tensors checkpoint. To train dense weights, load a
    dense checkpoint.

    Args:
      model: what the weights are for.
      named: NumPy or JAX arrays by Hugging Face name ("model.layers.0.mlp.up_proj.weight") or canonical name (without the
        prefix). JAX arrays are fetched to the host, a few sites at a time.

    Raises:
      CheckpointError: tensors are missing, unknown, of a wrong shape, dtype or format; up to five are named.
    """
    checkpoint = _as_checkpoint(named)
    sources = find_sources(checkpoint, tensor_specs(model.config))
    _check_formats(sources, model)
    config = EngineConfig(
        dtype=model.dtype,
        backend=model.forward.policy.backend,
        strict=model.forward.policy.strict,
        tensor_parallel_size=model.placement.size,
    )
    loaded = load_model(checkpoint, sources, model.config, config, lambda *_: None, model.placement)
    return loaded.params


def _as_checkpoint(named: Mapping[str, Any]) -> Checkpoint:
    return Checkpoint(
        root=_GIVEN,
        config={},
        generation_config={},
        quantization=None,
        quantization_file="",
        tensors={name: _info(name, array) for name, array in named.items()},
        files={_GIVEN: _Arrays(named)},  # type: ignore[dict-item]  # all that is asked of a file
    )


def _info(name: str, array: Any) -> TensorInfo:
    if not hasattr(array, "dtype") or not hasattr(array, "shape"):
        raise CheckpointError(f"{name} is {type(array).__name__}; an array is needed.")
    dtype = np.dtype(array.dtype)
    if dtype not in _NAMES:
        raise CheckpointError(
            f"{name} is {described(array)}; no checkpoint holds such a dtype: cast it to float32 or bfloat16."
        )
    return TensorInfo(_NAMES[dtype], tuple(array.shape), _GIVEN, 0, array.size * dtype.itemsize)


def _check_formats(sources: Mapping[str, Source], model: Model) -> None:
    given, loaded = dict(quantised(sources)), dict(model.quantised)
    names = sorted(given.keys() | loaded.keys())
    wrong = [n for n in names if given.get(n) != loaded.get(n) and not n.startswith("mtp.")]
    if wrong:
        here, there = (formats.get(wrong[0], "dense") for formats in (given, loaded))
        raise CheckpointError(
            f"{wrong[0]} is {here} here and {there} in the loaded model ({len(wrong)} tensors differ): the weights would be "
            "another tree and functions would be traced anew; load a checkpoint of the format that the weights have."
        )
