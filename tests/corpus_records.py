"""Cases of the corpus: quantisation records that can't be or that contradict the tensors, and files that aren't whole."""

import json
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
from checkpoints import config_json, write_json
from corpus_case import CONFIG, UP, WEIGHTS, Case, all_of, changed, other, scheme
from damages import drop, put
from format_writers import FORMATS


def text(name: str, content: str | bytes) -> Callable[[Path], None]:
    """Another content of a file."""
    raw = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(raw) and None


def tail_lost(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-1000])


def hf_record(folder: Path) -> None:
    write_json(folder / "hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4"}})


def stale_index(folder: Path) -> None:
    index = {"weight_map": {f"{UP}.weight": "model-00001-of-00002.safetensors"}}
    write_json(folder / "model.safetensors.index.json", index)


DENSE_UP = put(f"{UP}.weight", np.zeros((96, 64), ml_dtypes.bfloat16))
RECORDS = {
    "GPTQ": Case(
        "",
        "quant_method is 'gptq', which isn't implemented",
        record=other({"quant_method": "gptq"}),
    ),
    "bitsandbytes": Case(
        "",
        "implemented are awq, compressed-tensors, fp8, modelopt, quark",
        record=other({"quant_method": "bitsandbytes"}),
    ),
    "no method": Case("", "quant_method is 'none'", record=other({"bits": 4})),
    "no object": Case(
        "", "the quantisation record is [1], an object is needed", record=lambda _: [1]
    ),
    "blocks of 64": Case(
        "fp8 block",
        "weight_block_size is [64, 64]; [128, 128] is implemented",
        record=changed(weight_block_size=[64, 64]),
    ),
    "blocks of 64, compressed": Case(
        "fp8 block, compressed",
        "makes it fp8 with scale blocks of [64, 64]",
        record=scheme(block_structure=[64, 64]),
    ),
    "one scale where blocks are recorded": Case(
        "fp8 row",
        "is stored as fp8 per row, but config.json (fp8) says '*' makes it fp8 per block",
        record=other(FORMATS["fp8 block"].record(["in_proj_a", "in_proj_b"])),
    ),
    "scales per row where one is recorded": Case(
        "fp8 row",
        "is stored as fp8 per row, but config.json (modelopt) says '*' makes it fp8 per tensor",
        record=changed(quant_algo="FP8"),
    ),
    "an unknown algorithm": Case(
        "fp8 tensor", "says '*' makes it W4A8_AWQ", record=changed(quant_algo="W4A8_AWQ")
    ),
    "two algorithms": Case(
        "fp8 tensor",
        "quant_algo is 'FP8' in config.json and 'NVFP4' in hf_quant_config.json; the files don't belong together",
        file=hf_record,
    ),
    "nothing listed": Case(
        "fp8 tensor",
        "it is listed nowhere, so it is dense",
        record=changed(quant_algo="MIXED_PRECISION"),
    ),
    "a bad expression": Case(
        "fp8 channel",
        "config.json: the quantisation record holds 're:(', which is no valid regular expression",
        record=changed(ignore=["re:("]),
    ),
    "another strategy": Case(
        "fp8 channel", "makes it fp8 per tensor", record=scheme(strategy="tensor")
    ),
    "dense where everything is quantised": Case(
        "",
        "is stored as dense, but config.json (fp8) says '*' makes it fp8 per block",
        record=other(FORMATS["fp8 block"].record([])),
    ),
    "one dense sibling": Case(
        "fp8 tensor",
        "model.layers.0.mlp.up_proj.weight (model.safetensors, BF16 [96, 64]) is dense; tensors that are multiplied together",
        "load",
        all_of(drop(f"{UP}.weight_scale"), DENSE_UP),
        record=lambda r: r | {"ignore": [*r["ignore"], UP]},
    ),
}
FILES = {
    "cut off": Case("fp8 tensor", "is cut off", file=tail_lost),
    "a stale index": Case("fp8 tensor", "names 1 files, 1 of them missing", file=stale_index),
    "a pointer of Git LFS": Case(
        "",
        "is a Git LFS pointer",
        file=text(WEIGHTS, "version https://git-lfs.github.com/spec/v1\n"),
    ),
    "an empty file": Case("", "has 0 bytes", file=text(WEIGHTS, "")),
    "no header": Case(
        "", "the header isn't valid JSON", file=text(WEIGHTS, (4).to_bytes(8, "little") + b"nono")
    ),
    "half a config": Case("", "isn't valid JSON", file=text("config.json", '{"architectures": [')),
    "another architecture": Case(
        "",
        "isn't implemented; implemented: ",
        file=text("config.json", json.dumps(config_json(CONFIG) | {"architectures": ["X"]})),
    ),
    "no weights": Case("", "holds no weights", file=lambda folder: (folder / WEIGHTS).unlink()),
    "a bad hf_quant_config": Case("", "isn't valid JSON", file=text("hf_quant_config.json", "{")),
}
