"""Writes tests/golden/chat.json: renderings and token ids of the embedded model's chat template by transformers.

Usage: python tests/oracle/make_chat.py   (needs transformers, jinja2 and tokenizers)
"""

import json
import sys
from pathlib import Path

import transformers

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from chat_cases import CASES  # noqa: E402

MODEL = TESTS.parent / "onecat_jax/assets/tiny/target"


def render(tokenizer, messages, tools=None, add_generation_prompt=True, chat_template_kwargs=None):
    """Text and ids of one case."""
    options = {
        "tools": tools,
        "add_generation_prompt": add_generation_prompt,
        **(chat_template_kwargs or {}),
    }
    text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    return {"text": text, "ids": tokenizer(text, add_special_tokens=False)["input_ids"]}


def main() -> None:
    """Writes the file."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    lines = [
        f" {json.dumps(name)}: {json.dumps(render(tokenizer, **case), ensure_ascii=False)}"
        for name, case in CASES.items()
    ]
    head = f'{{"made_with": {{"transformers": "{transformers.__version__}"}}, "cases": {{\n'
    path = TESTS / "golden/chat.json"
    path.write_text(head + ",\n".join(lines) + "\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
