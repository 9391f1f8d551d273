"""Text in and out: tokenizer, chat template, incremental detokeniser, stop strings.

Pure Python; imports no JAX, no engine and no server.
"""

from onecat_jax.text.chat_template import ChatTemplate
from onecat_jax.text.stream import TextStream
from onecat_jax.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "TextStream", "Tokenizer"]
