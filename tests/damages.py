"""Ways to spoil a checkpoint's tensors before they are written. Each returns a function that edits them in place."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

Tensors = dict[str, np.ndarray]
FP8 = ml_dtypes.float8_e4m3fn


def drop(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__delitem__(name)


def put(name: str, array: np.ndarray) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__setitem__(name, array)


def cast(name: str, dtype: Any) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__setitem__(name, tensors[name].astype(dtype))


def rows_lost(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__setitem__(name, tensors[name][:-1])


def poke(name: str, value: object) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        array = tensors[name].copy()
        array.reshape(-1)[-1] = value
        tensors[name] = array

    return change


def poke_bits(name: str, bits: int) -> Callable[[Tensors], None]:
    return poke(name, np.array(bits, np.uint8).view(FP8))


def renamed(old: str, new: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__setitem__(new, tensors.pop(old))
