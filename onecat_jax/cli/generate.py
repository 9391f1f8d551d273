"""`onecat generate`: continues a prompt."""

import argparse
import sys

from onecat_jax.cli.options import (
    add_model_options,
    add_output_options,
    add_sampling_options,
    open_engine,
    sampling_params,
)
from onecat_jax.cli.show import exit_code, show
from onecat_jax.cli.streams import read_input
from onecat_jax.errors import RequestError

_MAX_TOKENS = 64
_EXAMPLES = """examples:
  onecat generate "def fibonacci(n):"
  onecat generate "import numpy" --temperature 0 --max-tokens 128
  onecat generate - --quiet < prompt.txt > answer.txt
  onecat generate "x = " --stop ";" --logprobs 3 --json

The text streams to stdout; the last line holds the figures (leave it out with --quiet).
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Gives the parser of `generate` its texts and options."""
    parser.description = "Continues a prompt, as plain text without a chat template."
    parser.epilog = _EXAMPLES
    parser.add_argument("prompt", metavar="PROMPT", help="the text; - reads it from stdin as it is")
    add_model_options(parser)
    add_sampling_options(parser, max_tokens=_MAX_TOKENS)
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Loads the model and writes the continuation.

    Raises:
      OnecatError: the model or the request can't be used.
    """
    prompt = read_text(args.prompt)
    llm = open_engine(args)
    params = sampling_params(args, llm.default_sampling_params)
    return exit_code(show(llm.stream(prompt, params), args, llm.stats))


def read_text(argument: str) -> str:
    """The argument itself, or stdin for "-".

    Raises:
      RequestError: nothing there, or stdin isn't text.
    """
    text = read_input(sys.stdin.read) if argument == "-" else argument
    if not text:
        raise RequestError("the prompt is empty; give at least one character.")
    return text
