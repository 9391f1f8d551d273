"""A corpus of damaged and contradictory checkpoints: how each is made, and what must be said about it.

    python tests/corpus.py FOLDER

writes all of them; tests/test_corpus.py reads them. Cases are named by what is wrong; the message holds what was found and what
is needed. A case shows itself in the headers (`info` refuses), in values (`check` finds it, and loading refuses), or only when
weights are put together (loading refuses).
"""

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
from checkpoints import SMALL, config_json, write_json, write_tensors
from damages import Tensors, cast, drop, poke, poke_bits, put, renamed, rows_lost
from format_decode import IN_ORDER
from format_goldens import read_safetensors
from format_models import usual, write_model
from format_writers import FORMATS, words

Shows = Literal["headers", "values", "load"]
CONFIG = replace(SMALL, mtp_num_hidden_layers=0)
UP = "model.layers.0.mlp.up_proj"  # [96, 64]
DOWN = "model.layers.0.mlp.down_proj"  # [64, 96]
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


def quark_weight(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(record: dict[str, Any]) -> dict[str, Any]:
        record["global_quant_config"]["weight"] |= fields
        return record

    return change


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


F32 = np.float32
FP8 = {
    "no scale": Case(
        "fp8 tensor",
        f"{UP}.weight (model.safetensors, F8_E4M3 [96, 64]) is FP8, its weight_scale is missing, needed BF16 or",
        damage=drop(f"{UP}.weight_scale"),
    ),
    "scale of integers": Case(
        "fp8 tensor",
        "weight_scale (model.safetensors, I32 []) has a wrong dtype, needed BF16 or F16 or F32",
        damage=put(f"{UP}.weight_scale", np.ones((), np.int32)),
    ),
    "a scale too few": Case(
        "fp8 row",
        "weight_scale (model.safetensors, F32 [95]) has a wrong shape, needed",
        damage=rows_lost(f"{UP}.weight_scale"),
    ),
    "scales along K": Case(
        "fp8 row",
        "F32 [64]) has a wrong shape, needed BF16 or F16 or F32 [] or [1] or [96] or [96, 1] or [1, 1, 1, 1] or [1, 1]",
        damage=put(f"{UP}.weight_scale", np.ones(64, F32)),
    ),
    "E5M2": Case(
        "fp8 tensor",
        "F8_E5M2 [96, 64]) is FP8 in E5M2, which isn't implemented",
        damage=cast(f"{UP}.weight", ml_dtypes.float8_e5m2),
    ),
    "a row of codes lost": Case(
        "fp8 channel",
        "F8_E4M3 [95, 64]) has a wrong shape, needed F8_E4M3 [96, 64]",
        damage=rows_lost(f"{UP}.weight"),
    ),
    "a second factor": Case(
        "fp8 tensor",
        f"is FP8, yet {UP}.weight_scale_2 (model.safetensors, F32 []) of another format lies beside it",
        damage=put(f"{UP}.weight_scale_2", np.ones((), F32)),
    ),
    "block scales of another grid": Case(
        "fp8 block",
        "weight_scale_inv (model.safetensors, BF16 [2, 1]) has a wrong shape, needed BF16 or F16 or F32 [1, 1]",
        damage=put(f"{UP}.weight_scale_inv", np.ones((2, 1), ml_dtypes.bfloat16)),
    ),
    "two kinds of scales": Case(
        "fp8 block",
        f"is FP8, yet {UP}.weight_scale (model.safetensors, F32 []) of another format",
        damage=put(f"{UP}.weight_scale", np.ones((), F32)),
    ),
    "block scales beside a dense weight": Case(
        "",
        f"is dense, yet quantisation scales lie beside it: {UP}.weight_scale_inv",
        damage=put(f"{UP}.weight_scale_inv", np.ones((1, 1), F32)),
    ),
    "packed FP8": Case(
        "fp8 tensor",
        "weight_packed (model.safetensors, F8_E4M3 [96, 64]) has a wrong dtype, needed U8 (NVFP4) or I32 (INT4)",
        damage=renamed(f"{UP}.weight", f"{UP}.weight_packed"),
    ),
    "a scale of zero": Case(
        "fp8 tensor",
        f"{UP}.weight_scale holds 1 of 1 scales that aren't finite and above zero, the first is 0.0",
        "values",
        put(f"{UP}.weight_scale", np.zeros((), F32)),
    ),
    "a negative scale": Case(
        "fp8 channel",
        f"{UP}.weight_scale holds 1 of 96 scales that aren't finite and above zero, the first is -1.0",
        "values",
        poke(f"{UP}.weight_scale", -1),
    ),
    "a scale that is NaN": Case(
        "fp8 row", "the first is nan", "values", poke(f"{UP}.weight_scale", np.nan)
    ),
    "an infinite block scale": Case(
        "fp8 block", "the first is inf", "values", poke(f"{UP}.weight_scale_inv", np.inf)
    ),
    "a code that is NaN": Case("fp8 tensor", "NaN", "values", poke_bits(f"{UP}.weight", 0x7F)),
    "a code that is the other NaN": Case(
        "fp8 block", "NaN", "values", poke_bits(f"{UP}.weight", 0xFF)
    ),
}
AWQ = {
    "no scales": Case(
        "awq 32",
        f"{UP}.qweight (model.safetensors, I32 [64, 12]) is AWQ INT4, its scales is missing, needed BF16 or F16 or",
        damage=drop(f"{UP}.scales"),
    ),
    "scales of another width": Case(
        "awq 32",
        "scales (model.safetensors, F16 [2, 95]) has a wrong shape, needed BF16 or F16 or F32 [2, 96]",
        damage=lambda t: put(f"{UP}.scales", t[f"{UP}.scales"][:, :-1])(t),
    ),
    "scales of one dimension": Case(
        "awq 32", "F16 [96]) has a wrong shape", damage=put(f"{UP}.scales", np.ones(96, np.float16))
    ),
    "a row of words lost": Case(
        "awq 32",
        "I32 [63, 12]) has a wrong shape, needed I32 [64, 12]",
        damage=rows_lost(f"{UP}.qweight"),
    ),
    "zero points as floats": Case(
        "awq 32",
        "qzeros (model.safetensors, F32 [2, 12]) has a wrong dtype, needed I32 [2, 12]",
        damage=cast(f"{UP}.qzeros", F32),
    ),
    "zero points of other groups": Case(
        "awq 32",
        "I32 [1, 12]) has a wrong shape, needed I32 [2, 12]",
        damage=rows_lost(f"{UP}.qzeros"),
    ),
    "groups that don't divide": Case(
        "awq 32",
        "is AWQ INT4, but K = 64 isn't divisible into the 3 groups of its scales",
        damage=put(f"{UP}.scales", np.ones((3, 96), np.float16)),
    ),
    "groups of 16": Case(
        "awq 32",
        "is AWQ INT4, in groups of 16 (K = 64, 4 scales a row); groups must be a multiple of 32",
        damage=put(f"{UP}.scales", np.ones((4, 96), np.float16)),
    ),
    "GPTQ": Case(
        "awq 32",
        "qweight (model.safetensors, I32 [8, 96]) is GPTQ INT4, which isn't implemented",
        damage=put(f"{UP}.qweight", np.zeros((8, 96), np.int32)),
    ),
    "an index of groups": Case(
        "awq 32", "is GPTQ INT4, which isn't", damage=put(f"{UP}.g_idx", np.zeros(64, np.int32))
    ),
    "a dense weight beside": Case(
        "awq 32",
        f"is AWQ INT4, yet {UP}.weight (model.safetensors, F32 [96, 64]) of another format",
        damage=put(f"{UP}.weight", np.ones((96, 64), F32)),
    ),
    "an infinite scale": Case(
        "awq 32",
        f"{UP}.scales holds 1 of 192 scales that aren't finite",
        "values",
        poke(f"{UP}.scales", np.inf),
    ),
    "zero points that the record denies": Case(
        "awq 32",
        "is stored as int4 in groups of 32 with zero points, but config.json (awq) says '*' makes it int4 in groups of 32",
        record=changed(zero_point=False),
    ),
    "zero points that aren't there": Case(
        "awq 32",
        "makes it int4 in groups of 32 with zero points",
        damage=lambda t: [t.pop(name) for name in list(t) if name.endswith("qzeros")] and None,
    ),
    "groups of another size than recorded": Case(
        "awq 32",
        "is stored as int4 in groups of 32 with zero points, but config.json (awq) says '*' makes it int4 in groups of 128",
        record=changed(group_size=128),
    ),
    "8 bits": Case("awq 32", "AWQ of version 'gemm' with 8 bits", record=changed(bits=8)),
    "another packing": Case("awq 32", "AWQ of version 'gemv'", record=changed(version="gemv")),
    "a module that isn't to be converted": Case(
        "awq 32",
        "it is excluded from quantisation by 'mlp.up_proj'",
        record=changed(modules_to_not_convert=["lm_head", "in_proj_a", "in_proj_b", "mlp.up_proj"]),
    ),
}


def odd_rows(tensors: Tensors) -> None:
    """Codes in the columns beyond N of a Quark weight with 4 rows."""
    codes = np.zeros((64, 8), np.int64)
    codes[:, 4:] = 1
    tensors[f"{GATE}.weight"] = tensors[f"{GATE}.weight"] | words(codes, IN_ORDER)


QUARK = {
    "no record": Case(
        "quark int4 order",
        "is Quark INT4, whose order of nibbles and sign only a quantisation record tells, but there is no such record",
        record=other(None),
    ),
    "the record of another method": Case(
        "quark int4 order",
        "but config.json (awq) says '*' makes it int4",
        record=other({"quant_method": "awq"}),
    ),
    "an excluded module": Case(
        "quark uint4 reorder",
        "but config.json (quark) says it is excluded from quantisation by '*up_proj'",
        record=lambda r: r | {"exclude": [*r["exclude"], "*up_proj"]},
    ),
    "an unknown pack_method": Case(
        "quark int4 order",
        "Quark's pack_method is 'zigzag'; 'reorder' or 'order' is implemented",
        record=changed(export={"pack_method": "zigzag"}),
    ),
    "words for too few columns": Case(
        "quark int4 order",
        "I32 [64, 11]) has a wrong shape, needed I32 [64, 12]",
        damage=lambda t: put(f"{UP}.weight", t[f"{UP}.weight"][:, :-1])(t),
    ),
    "zero points of another shape": Case(
        "quark uint4 reorder",
        "I32 [1, 12]) has a wrong shape",
        damage=rows_lost(f"{UP}.weight_zero_point"),
    ),
    "INT8 by record": Case(
        "quark int4 order",
        "nibbles and sign only a quantisation record tells, but config.json (quark) says '*' makes it int8 per_tensor",
        record=quark_weight(dtype="int8", qscheme="per_tensor"),
    ),
    "groups of another size than recorded": Case(
        "quark int4 order",
        "is stored as int4 in groups of 32, but config.json (quark) says '*' makes it int4 in groups of 64",
        record=quark_weight(group_size=64),
    ),
    "INT8 weights": Case(
        "quark int4 order",
        "I8 [64, 12]) is INT8, which isn't implemented",
        damage=cast(f"{UP}.weight", np.int8),
    ),
    "columns beyond the last that aren't zero": Case(
        "quark int4 order",
        f"{GATE}.weight holds 8 columns where 4 are needed, and 256 codes of the rest aren't zero",
        "values",
        odd_rows,
        gates=True,
    ),
    "a scale that is NaN": Case(
        "quark uint4 reorder",
        "scales that aren't finite",
        "values",
        poke(f"{UP}.weight_scale", np.nan),
    ),
}


def index_of(values: np.ndarray) -> Callable[[Tensors], None]:
    return put(f"{UP}.weight_g_idx", values.astype(np.int32))


COMPRESSED = {
    "no shape": Case(
        "int4 zeros",
        f"{UP}.weight_packed (model.safetensors, I32 [96, 8]) is INT4, its weight_shape is missing, needed I64 or I32 [2]",
        damage=drop(f"{UP}.weight_shape"),
    ),
    "another shape": Case(
        "int4 zeros",
        f"{UP}.weight_shape is [96, 32], the model needs [96, 64]",
        damage=put(f"{UP}.weight_shape", np.array([96, 32])),
    ),
    "groups of unlike sizes": Case(
        "int4 zeros",
        f"{UP}.weight_g_idx must name each of 2 groups 32 times; it holds 2 numbers from 0 to 1",
        damage=index_of(np.arange(64) > 30),
    ),
    "a group that isn't there": Case(
        "int4 zeros", "it holds 3 numbers from 0 to 2", damage=index_of(np.arange(64) // 25)
    ),
    "a negative group": Case(
        "int4 zeros",
        "numbers from -1 to 1",
        damage=index_of(np.arange(64) // 32 - (np.arange(64) == 5)),
    ),
    "an index too short": Case(
        "int4 zeros",
        "I32 [32]) has a wrong shape, needed I32 or I64 [64]",
        damage=index_of(np.zeros(32)),
    ),
    "zero points of another shape": Case(
        "int4 zeros",
        "weight_zero_point (model.safetensors, I32 [11, 2]) has a wrong shape, needed I32 [12, 2]",
        damage=rows_lost(f"{UP}.weight_zero_point"),
    ),
    "packed INT8": Case(
        "int4 zeros",
        "I32 [96, 16]) is packed INT8, which isn't implemented",
        damage=put(f"{UP}.weight_packed", np.zeros((96, 16), np.int32)),
    ),
    "zero points of a symmetric record": Case(
        "int4 zeros",
        "with zero points, but config.json (compressed-tensors) says '*' makes it int4 in groups of 32",
        record=scheme(symmetric=True),
    ),
    "no zero points": Case(
        "int4 zeros",
        "makes it int4 in groups of 32 with zero points",
        damage=lambda t: [t.pop(name) for name in list(t) if name.endswith("zero_point")] and None,
    ),
    "groups of another size than recorded": Case(
        "int4 zeros", "makes it int4 in groups of 64 with zero points", record=scheme(group_size=64)
    ),
    "scales in float64": Case(
        "int4 zeros",
        "weight_scale (model.safetensors, F64 [96, 2]) has a wrong dtype",
        damage=cast(f"{UP}.weight_scale", np.float64),
    ),
    "another kind of numbers than recorded": Case(
        "int4 zeros", "makes it nvfp4", record=scheme(type="float")
    ),
    "rotated weights": Case(
        "int4 zeros",
        "the quantisation record has a transform_config, and rotated weights aren't implemented",
        record=changed(transform_config={"config_groups": {"R1": {"type": "hadamard"}}}),
    ),
}

NVFP4 = {
    "padding that isn't zero": Case(
        "nvfp4 padded",
        f"{UP}.weight_packed has 128 rows where 96 are needed, and 1 values of the rest aren't zero",
        "values",
        all_of(poke(f"{UP}.weight_packed", 0x20), poke_bits(f"{UP}.weight_scale", 0x38)),
    ),
    "a strange number of rows": Case(
        "nvfp4 padded",
        "U8 [127, 32]) has a wrong shape, needed U8 [96, 32]",
        damage=rows_lost(f"{UP}.weight_packed"),
    ),
    "scales of fewer rows than codes": Case(
        "nvfp4 padded",
        "F8_E4M3 [96, 4]) has a wrong shape, needed F8_E4M3 [128, 4]",
        damage=lambda t: put(f"{UP}.weight_scale", t[f"{UP}.weight_scale"][:96])(t),
    ),
    "groups of 32 by record": Case(
        "nvfp4 compressed", "is stored as nvfp4, but config.json", record=scheme(group_size=32)
    ),
}
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
        "'re:(', which is no valid regular expression",
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
        "layers.0.mlp.up_proj.weight is DenseTensor; tensors that are multiplied together must be stored in one format",
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
GROUPS = {
    "FP8": FP8, "AWQ": AWQ, "Quark": QUARK, "INT4": COMPRESSED, "NVFP4": NVFP4, "record": RECORDS, "file": FILES
}  # fmt: skip
CASES = {
    f"{group}: {name}": case for group, cases in GROUPS.items() for name, case in cases.items()
}


def main(out: Path) -> None:
    """Writes every case into a folder of its name."""
    for name, case in CASES.items():
        folder = out / name.replace(":", "").replace(" ", "_")
        shutil.rmtree(folder, ignore_errors=True)
        make(case, folder)
        print(f"{folder}: {case.message}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
