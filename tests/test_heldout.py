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


@pytest.fixture(scope="module", params=["nvfp4", "bf16"])
def weights(request) -> tuple[str, str]:
    """Model and the name of its recorded figures."""
    if request.param == "nvfp4":
        return "tiny", "nll_nvfp4"
    folder = request.config.getoption("--heldout-bf16")
    if folder is None:
        pytest.skip("needs the unquantised model: --heldout-bf16 FOLDER")
    return folder, "nll_bf16"


def engine_nlls(documents, model: str, dtype: str) -> list[float]:
    llm = onecat_jax.LLM(model=model, dtype=dtype, max_model_len=nll.LIMIT + 64, max_num_seqs=4)
    tokenizer = nll.tiny_tokenizer()
    ids = [nll.document_ids(tokenizer, d["text"]) for d in documents]
    assert [len(i) - 1 for i in ids] == [d["tokens"] for d in documents]
    return nll.summed_nlls(llm, ids)


def overall_error(recorded: list[float], found: list[float]) -> float:
    return abs(sum(found) / sum(recorded) - 1)


def test_float32_likelihoods_equal_the_recorded_ones(documents, weights):
    model, field = weights
    recorded = [d[field] for d in documents]
    found = engine_nlls(documents, model, "float32")
    errors = [abs(f / r - 1) for f, r in zip(found, recorded, strict=True)]
    print(
        f"{field}: worst document {max(errors):.1e}, overall {overall_error(recorded, found):.1e}"
    )
    assert max(errors) <= 2e-3
    assert overall_error(recorded, found) <= 5e-4


def test_float16_likelihoods_equal_the_recorded_ones_over_all(documents, weights):
    model, field = weights
    recorded = [d[field] for d in documents]
    error = overall_error(recorded, engine_nlls(documents, model, "float16"))
    print(f"{field}: overall {error:.1e}")
    assert error <= 3e-3
