"""The engine gives three short documents the likelihood that PyTorch gives them.

Oracle: tests/golden/nll_text.json, made by tests/oracle/make_nll.py with transformers in float32 on
the dequantised weights of the embedded model. The figure is the sum of -ln p over a document, so it
covers tokenizer, chunked prefill, quantised weights and prompt_logprobs together. Not covered: the
shape of single distributions (tests/test_parity.py looks at logits).
"""

import json
from pathlib import Path

import nll
import pytest

import onecat_jax

DOCUMENTS = json.loads(
    (Path(__file__).parent / "golden" / "nll_text.json").read_text(encoding="utf-8")
)["documents"]


@pytest.fixture(scope="module", params=[("float32", 5e-4), ("float16", 3e-3)], ids=lambda p: p[0])
def found_and_limit(request):
    dtype, limit = request.param
    llm = onecat_jax.LLM(model="tiny", dtype=dtype, max_model_len=1024, max_num_seqs=2)
    ids = [nll.document_ids(nll.tiny_tokenizer(), d["text"]) for d in DOCUMENTS]
    return nll.summed_nlls(llm, ids), limit


def test_documents_encode_to_the_recorded_number_of_tokens():
    tokenizer = nll.tiny_tokenizer()
    found = [len(nll.document_ids(tokenizer, d["text"])) - 1 for d in DOCUMENTS]
    assert found == [d["tokens"] for d in DOCUMENTS]


def test_each_document_has_the_likelihood_pytorch_gives_it(found_and_limit):
    found, limit = found_and_limit
    for document, value in zip(DOCUMENTS, found, strict=True):
        assert value == pytest.approx(document["nll_nvfp4"], rel=limit), document["name"]
