"""One engine of the embedded model for all engine tests of a run, so that programs are compiled once."""

from functools import cache

import onecat_jax
from onecat_jax import LLM, RequestOutput, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
PROMPTS = (
    "def read_json(path):\n    ",
    "import numpy as np\n\n\ndef mean(x):",
    "class Stack:\n",
    "# A short poem about tides\n",
    "x",
)


@cache
def tiny() -> LLM:
    """Shared: tests leave it as they found it (nothing running)."""
    return onecat_jax.LLM(
        model="tiny", max_model_len=512, max_num_seqs=4, max_num_batched_tokens=128
    )


def ids_of(output: RequestOutput) -> tuple[int, ...]:
    return output.outputs[0].token_ids
