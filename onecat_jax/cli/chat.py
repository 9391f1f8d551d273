"""`onecat chat`: a conversation in the terminal, or one message from a script."""

import argparse
import contextlib
import importlib
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING

from onecat_jax.cli.generate import read_text
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

if TYPE_CHECKING:
    from onecat_jax.llm import LLM
    from onecat_jax.outputs import RequestOutput
    from onecat_jax.sampling_params import SamplingParams

_MAX_TOKENS = 512
_HELP = "/reset forgets the conversation, /exit ends it; Ctrl-C stops an answer."
_EXAMPLES = f"""examples:
  onecat chat
  onecat chat --model ./Qwen3.8-27B-NVFP4 --system "Answer briefly." --thinking
  onecat chat --message "Write a function that adds two numbers." --quiet
  onecat chat --message - --json < question.txt

In a conversation: {_HELP}
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Gives the parser of `chat` its texts and options."""
    parser.description = "Talks to a model through its chat template; the conversation is kept."
    parser.epilog = _EXAMPLES
    parser.add_argument("--message", metavar="TEXT", help="ask once and exit; - reads stdin")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument(
        "--thinking",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="let the model think first, or not; default: what its template does",
    )
    add_model_options(parser)
    add_sampling_options(parser, max_tokens=_MAX_TOKENS)
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """One answer with --message, else a conversation until /exit or the end of the input.

    Raises:
      OnecatError: the model can't be used, or the one message can't.
    """
    message = None if args.message is None else read_text(args.message)
    llm = open_engine(args)
    chat = Conversation(llm, sampling_params(args, llm.default_sampling_params), args)
    if message is not None:
        return exit_code(chat.ask(message))
    return _converse(chat)


class Conversation:
    """The messages so far, and how the next one is answered."""

    def __init__(self, llm: "LLM", params: "SamplingParams", args: argparse.Namespace) -> None:
        self._llm = llm
        self._params = params
        self._args = args
        self._kwargs = {} if args.thinking is None else {"enable_thinking": args.thinking}
        self.messages: list[dict[str, str]] = []
        self.reset()

    def reset(self) -> None:
        """Forgets everything but the system message."""
        system = self._args.system
        self.messages = [] if system is None else [{"role": "system", "content": system}]

    def ask(self, text: str) -> "RequestOutput":
        """Writes the answer and remembers both; a message that isn't answered in full is forgotten.

        Raises:
          RequestError: the conversation is too long, or the template refuses it.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        deltas = self._llm.chat_stream(
            asked, self._params, chat_template_kwargs=self._kwargs or None
        )
        try:
            output = show(deltas, self._args, self._llm.stats)
        finally:
            _close(deltas)
        if output.outputs[0].finish_reason != "error":
            self.messages = [*asked, assistant_message(output.outputs[0].text)]
        return output


def _close(deltas: object) -> None:
    """Ends the request of a stream that was left early; a generator does so when it is closed."""
    if isinstance(deltas, Generator):
        deltas.close()


def assistant_message(text: str) -> dict[str, str]:
    """The answer as a message of the history; a finished think block becomes its reasoning."""
    thought, mark, answer = text.rpartition("</think>")
    if not mark:
        return {"role": "assistant", "content": text.strip()}
    reasoning = thought.strip().removeprefix("<think>").strip()
    return {"role": "assistant", "content": answer.strip(), "reasoning_content": reasoning}


def _converse(chat: Conversation) -> int:
    """Reads lines until the end; errors of one message are told and don't end the conversation."""
    at_terminal = sys.stdin.isatty()
    if at_terminal:
        # Imported for its effect, line editing and history; not every Python has it.
        with contextlib.suppress(ImportError):
            importlib.import_module("readline")
        print(_HELP, file=sys.stderr)
    code = 0
    while (line := _read_line(at_terminal)) is not None:
        command = line.strip()
        if command in ("/exit", "/quit"):
            break
        if command == "/reset":
            chat.reset()
        elif command == "/help":
            print(_HELP, file=sys.stderr)
        elif command:
            code = _answer(chat, line, keep_going=at_terminal)
    return code


def _answer(chat: Conversation, line: str, *, keep_going: bool) -> int:
    """Exit code of one message. On a terminal Ctrl-C ends the answer and a refusal the message, not the conversation."""
    try:
        return exit_code(chat.ask(line))
    except RequestError as error:
        if not keep_going:
            raise
        print(f"onecat: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        if not keep_going:
            raise
        print("\n[stopped]", file=sys.stderr)
    return 0


def _read_line(at_terminal: bool) -> str | None:
    """The next line, None at the end of the input; RequestError if it isn't text."""
    if at_terminal:
        try:
            return read_input(lambda: input("> "))
        except EOFError:
            print(file=sys.stderr)
            return None
    line = read_input(sys.stdin.readline)
    return line.rstrip("\n") if line else None
