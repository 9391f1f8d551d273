"""What a finished request looks like in JSON and in the last line of the text output."""

from collections.abc import Mapping
from typing import Any

from onecat_jax.outputs import CompletionOutput, RequestOutput, TokenLogprobs


def decode_rate(tokens: int, decode_seconds: float) -> float | None:
    """Tokens per second after the first one; None where there was no second token."""
    return (tokens - 1) / decode_seconds if tokens > 1 and decode_seconds > 0 else None


def figures(output: RequestOutput, stats: Mapping[str, Any]) -> dict[str, Any]:
    """Counts and times of one request with one sample; compile_seconds is the engine's so far."""
    metrics, tokens = output.metrics, len(output.outputs[0].token_ids)
    return {
        "prompt_tokens": len(output.prompt_token_ids),
        "cached_prompt_tokens": metrics.cached_prompt_tokens,
        "tokens": tokens,
        "decode_tokens_per_second": decode_rate(tokens, metrics.decode_seconds),
        "ttft_seconds": metrics.ttft_seconds,
        "decode_seconds": metrics.decode_seconds,
        "acceptance_length": metrics.acceptance_length,
        "rounds": metrics.rounds,
        "compile_seconds": stats.get("compile_seconds"),
        "speculation": stats.get("speculation"),
    }


def figures_line(values: Mapping[str, Any], finish_reason: str | None) -> str:
    """The figures in one line of text."""
    parts = [f"{values['prompt_tokens']} prompt tokens", f"{values['tokens']} tokens"]
    if values["decode_tokens_per_second"] is not None:
        parts.append(f"{values['decode_tokens_per_second']:.1f} tok/s")
    if (drafting := values.get("speculation")) and drafting["drafted_rounds"]:
        parts.append(_drafting(values))
    parts.append(f"first token {values['ttft_seconds']:.2f} s")
    if values["compile_seconds"] is not None:
        parts.append(f"compile {values['compile_seconds']:.1f} s")
    parts.append(f"finish: {finish_reason}")
    return f"[{', '.join(parts)}]"


def _drafting(values: Mapping[str, Any]) -> str:
    """What drafts brought, and what the device loop took for a round of the width that ran most."""
    figures = values["speculation"]
    rounds = f"{values['acceptance_length']:.2f} tokens per round over {values['rounds']} rounds"
    widest = list(figures["ms_per_round"].values())[-1]
    return f"{rounds} of {widest:.1f} ms"


def result_object(output: RequestOutput, stats: Mapping[str, Any]) -> dict[str, Any]:
    """A finished request with one sample as a JSON object."""
    sample = output.outputs[0]
    return {
        "prompt_token_ids": list(output.prompt_token_ids),
        "token_ids": list(sample.token_ids),
        "text": sample.text,
        "finish_reason": sample.finish_reason,
        "stop_reason": sample.stop_reason,
        "cumulative_logprob": sample.cumulative_logprob,
        "logprobs": _logprob_objects(sample),
        "figures": figures(output, stats),
    }


def logprob_lines(sample: CompletionOutput) -> list[str]:
    """One line per token: the token, its log probability and rank, then the alternatives."""
    if sample.logprobs is None:
        return []
    return [
        "  ".join(_entry_text(table, token) for token in _chosen_first(chosen, table))
        for chosen, table in zip(sample.token_ids, sample.logprobs, strict=True)
    ]


def _chosen_first(chosen: int, table: TokenLogprobs) -> list[int]:
    return [chosen, *(token for token in table if token != chosen)]


def _entry_text(table: TokenLogprobs, token: int) -> str:
    entry = table[token]
    rank = "" if entry.rank is None else f" #{entry.rank}"
    return f"{entry.decoded_token!r} {entry.logprob:.4f}{rank}"


def _logprob_objects(sample: CompletionOutput) -> list[dict[str, Any]] | None:
    if sample.logprobs is None:
        return None
    return [
        {**_entry_object(chosen, table), "top": [_entry_object(token, table) for token in table]}
        for chosen, table in zip(sample.token_ids, sample.logprobs, strict=True)
    ]


def _entry_object(token: int, table: TokenLogprobs) -> dict[str, Any]:
    entry = table[token]
    return {
        "token_id": token,
        "token": entry.decoded_token,
        "logprob": entry.logprob,
        "rank": entry.rank,
    }
