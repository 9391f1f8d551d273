"""Summed negative log-likelihood of documents through the public interface."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

import onecat_jax

TINY = Path(onecat_jax.__file__).parent / "assets" / "tiny" / "target"
LIMIT = 2048
START = 8182  # <|endoftext|>


def document_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """[<|endoftext|>] + encode(text), cut to 2048 ids."""
    return [START, *tokenizer.encode(text, add_special_tokens=False).ids][:LIMIT]


def tiny_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TINY / "tokenizer.json"))


def summed_nlls(llm: Any, documents: Sequence[Sequence[int]]) -> list[float]:
    """-ln p of all ids but the first, summed per document, in nats."""
    params = onecat_jax.SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    prompts = [{"prompt_token_ids": list(ids)} for ids in documents]
    return [_summed(out) for out in llm.generate(prompts, params)]


def _summed(output: Any) -> float:
    scored = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    return -sum(entry[token].logprob for token, entry in scored)
