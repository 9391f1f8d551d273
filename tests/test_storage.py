"""Smaller storage and compute types change likelihoods by no more than their precision allows.

Oracle: the float32 engine on the same text. A wrong scale, a missing saturation or a swapped format moves the likelihood by
tens of percent; rounding moves it by what is stated per case.
"""

import json
from functools import cache
from pathlib import Path

import nll
import pytest

from onecat_jax import LLM
from onecat_jax.errors import EngineError

TEXT = json.loads((Path(__file__).parent / "golden" / "nll_text.json").read_text(encoding="utf-8"))[
    "documents"
][0]["text"]
IDS = nll.document_ids(nll.tiny_tokenizer(), TEXT)[:250]


@cache
def likelihood(**arguments) -> float:
    llm = LLM("tiny", max_model_len=320, max_num_seqs=1, max_num_batched_tokens=256, **arguments)
    return nll.summed_nlls(llm, [IDS])[0]


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [
        ({"kv_cache_dtype": "float16"}, 1e-3),
        ({"kv_cache_dtype": "fp8_e4m3"}, 1e-2),
        ({"kv_cache_dtype": "fp8_e5m2"}, 2e-2),
        ({"dtype": "bfloat16"}, 1e-2),
        ({"backend": "plain"}, 1e-5),
    ],
    ids=str,
)
def test_the_likelihood_moves_no_more_than_the_precision(arguments, limit):
    assert likelihood(**arguments) == pytest.approx(likelihood(), rel=limit)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "int8"}, "dtype is 'int8'; it must be one of auto, float32"),
        ({"kv_cache_dtype": "int4"}, "kv_cache_dtype is 'int4'"),
        ({"block_size": 24}, "block_size is 24; a multiple of 16 is needed"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0; a whole number of at least 1"),
        (
            {"gpu_memory_utilization": 1.5},
            r"gpu_memory_utilization is 1.5; it must lie in \(0, 1\]",
        ),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size is 0; a whole number of at least 1"),
        ({"enable_prefix_caching": True}, "enable_prefix_caching=True isn't implemented yet"),
        ({"max_len": 3}, "unknown engine argument 'max_len'; known: dtype"),
    ],
    ids=str,
)
def test_a_bad_engine_argument_is_refused_by_name_and_value(arguments, message):
    with pytest.raises(EngineError, match=message):
        LLM("tiny", **arguments)
