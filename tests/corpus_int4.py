"""Cases of the corpus: INT4 checkpoints of AWQ, Quark and compressed-tensors that are damaged or contradict their record."""

from collections.abc import Callable
from typing import Any

import numpy as np
from corpus_case import GATE, UP, Case, changed, other, scheme
from damages import Tensors, cast, drop, poke, put, rows_lost
from format_decode import IN_ORDER
from format_writers import words

F32 = np.float32
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
        f"{UP}.scales (model.safetensors, F16 [2, 96]) holds 1 of 192 scales that aren't finite",
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


def quark_weight(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(record: dict[str, Any]) -> dict[str, Any]:
        record["global_quant_config"]["weight"] |= fields
        return record

    return change


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
        f"{GATE}.weight (model.safetensors, I32 [64, 1]) holds 8 columns where 4 are needed, and 256 codes of",
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
        f"{UP}.weight_shape (model.safetensors, I64 [2]) is [96, 32], the model needs [96, 64]",
        damage=put(f"{UP}.weight_shape", np.array([96, 32])),
    ),
    "groups of unlike sizes": Case(
        "int4 zeros",
        f"{UP}.weight_g_idx (model.safetensors, I32 [64]) must name each of 2 groups 32 times; it holds 2 numbers from 0 to 1",
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
