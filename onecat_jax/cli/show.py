"""Writes the answer of one request to stdout while it comes."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from onecat_jax.cli.figures import figures, figures_line, logprob_lines, result_object
from onecat_jax.outputs import RequestOutput, StreamDelta

Stats = Callable[[], Mapping[str, Any]]


def show(deltas: Iterable[StreamDelta], args: argparse.Namespace, stats: Stats) -> RequestOutput:
    """Writes text as it comes (or JSON at the end, as the output options say) and returns the result.

    Args:
      deltas: a stream whose last element holds the output.
      args: with json, no_stream and quiet.
      stats: the engine's counters, asked for at the end.
    """
    output = _write_text(deltas, live=not (args.json or args.no_stream))
    sample = output.outputs[0]
    if args.json:
        print(json.dumps(result_object(output, stats()), ensure_ascii=False), flush=True)
        return output
    if args.no_stream:
        sys.stdout.write(sample.text)
    if not sample.text.endswith("\n"):
        sys.stdout.write("\n")
    for line in logprob_lines(sample):
        print(line)
    if not args.quiet:
        print(figures_line(figures(output, stats()), sample.finish_reason))
    sys.stdout.flush()
    return output


def exit_code(output: RequestOutput) -> int:
    """1 with a sentence on stderr if the request failed inside the engine, else 0."""
    sample = output.outputs[0]
    if sample.finish_reason != "error":
        return 0
    print(f"onecat: the request failed: {sample.stop_reason}", file=sys.stderr)
    return 1


def _write_text(deltas: Iterable[StreamDelta], *, live: bool) -> RequestOutput:
    output = None
    for delta in deltas:
        if live and delta.text:
            sys.stdout.write(delta.text)
            sys.stdout.flush()
        output = delta.output or output
    if output is None:
        raise RuntimeError("the stream ended without a result")
    return output
