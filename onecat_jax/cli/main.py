"""`onecat`: reads the command line, runs a command, turns errors into sentences and exit codes.

Exit codes: 0 done, 1 something failed, 2 wrong arguments or input, 130 interrupted, 141 the reader of the output went away.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

from onecat_jax.cli.streams import drop_output, exit_now, is_output_error, prepare_streams, tell
from onecat_jax.errors import OnecatError

COMMANDS = {
    "generate": "continue a prompt",
    "chat": "talk to a model",
    "info": "what a checkpoint is, what it needs, how much context fits",
    "check": "whether the installation and a checkpoint will work",
    "bench": "how fast the kernels are on this GPU, what bounds them on a V100",
    "convert": "write a checkpoint for any number of devices, as orbax stores it",
}
INTERRUPTED = 130
BROKEN_PIPE = 141
_DESCRIPTION = "Runs hybrid-attention language models with JAX."
_EXAMPLES = """examples:
  onecat generate "def fibonacci(n):" --max-tokens 64
  onecat chat --model ./Qwen3.8-27B-NVFP4
  onecat info tiny
  onecat check

Without --model the small embedded model runs. Help on one command: onecat COMMAND --help
"""
_BUG = "This is a bug in onecat-jax, not in your input: please report it with the command line and the text above."


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """The parser with all commands; only the named one is imported and knows its options.

    JAX takes seconds to import: commands do it when they run, so that help and wrong arguments don't wait for it.
    """
    parser = argparse.ArgumentParser(
        prog="onecat",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        subparser = commands.add_parser(
            name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if name == command:
            importlib.import_module(f"onecat_jax.cli.{name}").configure(subparser)
    return parser


class _Version(argparse.Action):
    """Looks the version up only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib import metadata  # slow to import, and rarely needed

        print(metadata.version("onecat-jax"))
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code. Errors that aren't for users propagate with a note."""
    prepare_streams()
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except OnecatError as error:
        tell(f"onecat: {error}")
        return 2
    except KeyboardInterrupt:
        tell("")
        if arguments is None:  # the process is ours
            exit_now(INTERRUPTED)
        return INTERRUPTED
    except BrokenPipeError:
        drop_output()
        return BROKEN_PIPE
    except OSError as error:
        if not is_output_error(error):
            error.add_note(_BUG)
            raise
        drop_output()
        tell(f"onecat: the output can't be written: {error.strerror}.")
        return 1
    except Exception as error:
        error.add_note(_BUG)
        raise
    return code


def _run(arguments: Sequence[str] | None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    command = next((word for word in given if word in COMMANDS), None)
    args = build_parser(command).parse_args(given)
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
