"""One case of the corpus of damaged checkpoints (corpus.py): a good checkpoint, what is done to it, and what must be said."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from checkpoints import SMALL, write_json, write_tensors
from damages import Tensors
from format_goldens import read_safetensors
from format_models import usual, write_model

Shows = Literal["headers", "values", "load"]
CONFIG = replace(SMALL, mtp_num_hidden_layers=0)
UP = "model.layers.0.mlp.up_proj"  # [96, 64]
GATE = "model.layers.0.linear_attn.in_proj_b"  # [4, 64]
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Case:
    """One damaged checkpoint.

    Attributes:
      form: format of the linears before the damage; "" for dense.
      message: part of what must be said.
      damage: changes the tensors.
      record: changes quantization_config; None takes it away.
      file: changes the folder, after everything else.
      gates: whether the gates and the head are quantised too.
    """

    form: str
    message: str
    shows: Shows = "headers"
    damage: Callable[[Tensors], None] = lambda tensors: None
    record: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda record: record
    file: Callable[[Path], None] = lambda folder: None
    gates: bool = False


def make(case: Case, folder: Path) -> Path:
    """Writes a case."""
    layout = (lambda _: case.form) if case.gates else usual(case.form)
    write_model(folder, layout, record=None if case.form else {}, config=CONFIG)
    tensors = read_safetensors(folder / WEIGHTS)
    case.damage(tensors)
    write_tensors(folder, {name: a.copy(order="C") for name, a in tensors.items()})
    config = json.loads((folder / "config.json").read_text())
    record = case.record(config.pop("quantization_config", {}))
    write_json(folder / "config.json", config | ({"quantization_config": record} if record else {}))
    case.file(folder)
    return folder


def all_of(*changes: Callable[[Tensors], None]) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        for one in changes:
            one(tensors)

    return change


def changed(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda record: record | fields


def other(record: Mapping[str, Any] | None) -> Callable[[dict[str, Any]], Any]:
    return lambda _: None if record is None else dict(record)


def scheme(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Changes the weights' scheme of the only group of compressed-tensors."""

    def change(record: dict[str, Any]) -> dict[str, Any]:
        record["config_groups"]["group_0"]["weights"] |= fields
        return record

    return change
