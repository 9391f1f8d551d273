"""Cases of the corpus: tensors of FP8 and of NVFP4 checkpoints that are damaged or don't belong together."""

import ml_dtypes
import numpy as np
from corpus_case import UP, Case, all_of, scheme
from damages import cast, drop, poke, poke_bits, put, renamed, rows_lost

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
        f"{UP}.weight_scale (model.safetensors, F32 []) holds 1 of 1 scales that aren't finite and above zero",
        "values",
        put(f"{UP}.weight_scale", np.zeros((), F32)),
    ),
    "a negative scale": Case(
        "fp8 channel",
        f"{UP}.weight_scale (model.safetensors, BF16 [96, 1]) holds 1 of 96 scales that aren't finite and above zero",
        "values",
        poke(f"{UP}.weight_scale", -1),
    ),
    "a scale that is NaN": Case(
        "fp8 row", "the first is nan", "values", poke(f"{UP}.weight_scale", np.nan)
    ),
    "an infinite block scale": Case(
        "fp8 block", "the first is inf", "values", poke(f"{UP}.weight_scale_inv", np.inf)
    ),
    "a code that is NaN": Case(
        "fp8 tensor",
        f"{UP}.weight (model.safetensors, F8_E4M3 [96, 64])",
        "values",
        poke_bits(f"{UP}.weight", 0x7F),
    ),
    "a code that is the other NaN": Case(
        "fp8 block",
        f"{UP}.weight (model.safetensors, F8_E4M3 [96, 64])",
        "values",
        poke_bits(f"{UP}.weight", 0xFF),
    ),
}
NVFP4 = {
    "padding that isn't zero": Case(
        "nvfp4 padded",
        f"{UP}.weight_packed (model.safetensors, U8 [128, 32]) has 128 rows where 96 are needed, and 1 values of",
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
        "nvfp4 compressed", "says '*' makes it nvfp4 in groups of 32", record=scheme(group_size=32)
    ),
}
