"""Reads tests/golden/formats: weights of every format as their public packages wrote and decode them.

Needs numpy and ml_dtypes alone: neither the engine's reader nor torch has a hand in it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

GOLDEN = Path(__file__).parent / "golden" / "formats"
CHECKPOINTS = GOLDEN / "checkpoints"
DTYPES = {
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "BF16": ml_dtypes.bfloat16,
    "F16": np.float16,
    "F32": np.float32,
    "U8": np.uint8,
    "I32": np.int32,
    "I64": np.int64,
}


@dataclass(frozen=True)
class Golden:
    """One format.

    Attributes:
      tensors: by full name, as a one-layer checkpoint holds them.
      config: `quantization_config` of config.json.
      hf_quant_config: contents of hf_quant_config.json, if the package writes one.
      dequantised: float32 [N, K] by full module name: the package's float64, rounded once.
    """

    name: str
    tensors: Mapping[str, np.ndarray]
    config: Mapping[str, Any]
    hf_quant_config: Mapping[str, Any] | None
    dequantised: Mapping[str, np.ndarray]

    def parts(self, module: str) -> dict[str, np.ndarray]:
        """The tensors of one module by local name."""
        prefix = f"{module}."
        return {k.removeprefix(prefix): v for k, v in self.tensors.items() if k.startswith(prefix)}


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a file, FP8 and BF16 as ml_dtypes."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(body[slice(*entry["data_offsets"])], DTYPES[entry["dtype"]]).reshape(
            entry["shape"]
        )
        for name, entry in header.items()
    }


def golden_names() -> list[str]:
    """All formats, in order."""
    return sorted(path.stem for path in GOLDEN.glob("*.safetensors"))


def load_golden(name: str) -> Golden:
    """The weights of one format.

    Raises:
      FileNotFoundError: there is no format of this name.
    """
    records = json.loads((GOLDEN / f"{name}.json").read_text())
    with np.load(GOLDEN / f"{name}.npz") as stored:
        dequantised = dict(stored)
    return Golden(
        name,
        read_safetensors(GOLDEN / f"{name}.safetensors"),
        records["config.json"],
        records.get("hf_quant_config.json"),
        dequantised,
    )


def load_versions() -> dict[str, Any]:
    """What made the goldens: versions, packages and functions per format."""
    return json.loads((GOLDEN / "versions.json").read_text())
