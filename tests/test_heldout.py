"""The engine gives held-out documents the likelihood recorded for them.

Oracle: a JSON Lines file given by `pytest -m oracle --heldout PATH`, not part of the repository. One
document per line:

    {"id": 0, "kind": "code" | "chat", "text": str,
     "tokens": int,          # ids scored: the encoded text, without the start id, at most 2047
     "nll_bf16": float,      # summed -ln p of those ids, nats, PyTorch float32 on the bf16 weights
     "nll_nvfp4": float}     # the same on the dequantised NVFP4 weights of the embedded model

ids = [<|endoftext|>] + encode(text), cut to 2048; see tests/oracle/make_nll.py.
"""

import json
from pathlib import Path

import nll
import pytest

import onecat_jax

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def documents(request):
    path = request.config.getoption("--heldout")
    if path is None:
        pytest.skip("needs a file of held-out documents: pytest -m oracle --heldout PATH")
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line]


def engine_nlls(documents, dtype: str) -> list[float]:
    llm = onecat_jax.LLM(model="tiny", dtype=dtype, max_model_len=nll.LIMIT + 64, max_num_seqs=4)
    tokenizer = nll.tiny_tokenizer()
    ids = [nll.document_ids(tokenizer, d["text"]) for d in documents]
    assert [len(i) - 1 for i in ids] == [d["tokens"] for d in documents]
    return nll.summed_nlls(llm, ids)


def overall_error(documents, found: list[float]) -> float:
    expected = sum(d["nll_nvfp4"] for d in documents)
    return abs(sum(found) / expected - 1)


def test_float32_likelihoods_equal_the_recorded_ones(documents):
    found = engine_nlls(documents, "float32")
    for document, value in zip(documents, found, strict=True):
        assert value == pytest.approx(document["nll_nvfp4"], rel=2e-3), document["id"]
    assert overall_error(documents, found) <= 5e-4


def test_float16_likelihoods_equal_the_recorded_ones_over_all(documents):
    assert overall_error(documents, engine_nlls(documents, "float16")) <= 3e-3
