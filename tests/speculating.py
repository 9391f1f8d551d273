"""Engines of the embedded model with and without drafts, shared by the tests of speculative decoding, and prompts for them."""

from functools import cache

import pytest

from onecat_jax import LLM, RequestOutput, SamplingParams

ROWS, CONTEXT = 4, 640
GREEDY = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True, logprobs=2)
PROMPTS = (
    "def read_json(path):\n    ",
    "import numpy as np\n\n\ndef mean(x):",
    "class Stack:\n    def __init__(self):\n",
    "def fibonacci(n: int) -> int:\n    ",
    "x",
    "for name in names:\n    print(name)\nfor name in names:\n    print(name)\nfor name in",
    "# A short poem about tides\n",
    "try:\n    value = int(text)\nexcept ValueError:\n    ",
)
METHODS = {
    "dflash": {"method": "dflash"},
    "dflash with 3 drafts": {"method": "dflash", "num_speculative_tokens": 3},
    "mtp": {"method": "mtp", "num_speculative_tokens": 3},
}
OFTEN = [  # as parameters of tests: what adds little is a slow test
    "dflash",
    "mtp",
    pytest.param("dflash with 3 drafts", marks=pytest.mark.slow),
]


@cache
def engine(method: str | None, **arguments: object) -> LLM:
    """Shared: tests leave it as they found it (nothing running). Without a method it drafts nothing."""
    speculative = None if method is None else METHODS[method]
    return LLM(
        model="tiny",
        max_model_len=CONTEXT,
        max_num_seqs=ROWS,
        max_num_batched_tokens=64,
        speculative_config=speculative,
        **arguments,
    )


def told(output: RequestOutput) -> tuple:
    """Everything that a request says about its tokens: ids, and log probabilities to the last bit."""
    sample = output.outputs[0]
    tables = [
        sorted((token, entry.logprob, entry.rank) for token, entry in table.items())
        for table in sample.logprobs or ()
    ]
    return sample.token_ids, tables, sample.finish_reason, sample.text
