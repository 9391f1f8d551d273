"""What a reader sees doesn't depend on how a token stream is cut into launches.

Oracle: the bytes of all tokens, decoded as far as they are complete, and a reader that looks at one more character at a time
and asks which stop strings the text ends with. Tokens are mostly single bytes, so characters of two to four bytes lie across
every cut. All 512 ways to cut ten tokens are tried. The engine is played by hand: it adds tokens without knowing stop strings.
"""

import codecs
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onecat_jax.outputs import CompletionOutput
from onecat_jax.request import Request, Score
from onecat_jax.results import Sample
from onecat_jax.sampling_params import SamplingParams
from onecat_jax.text import Tokenizer
from onecat_jax.text.byte_level import BYTE_OF

TOKENIZER = Tokenizer.from_directory(
    Path(__file__).resolve().parents[1] / "onecat_jax/assets/tiny/target"
)
EOS = TOKENIZER.eos_ids[0]
ID_OF_BYTE = {value: TOKENIZER.token_id(character) for character, value in BYTE_OF.items()}
PARAMS = SamplingParams(max_tokens=99, logprobs=0)


def by_bytes(text: str) -> list[int]:
    """One token for every byte."""
    return [ID_OF_BYTE[byte] for byte in text.encode()]


def stopped(text: str, stops: tuple[str, ...]) -> tuple[int, int, str] | None:
    """(start, end, stop string) of the stop string that is complete first, the longest among equals."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return end - len(stop), end, stop
    return None


def expected(ids: list[int], params: SamplingParams, end: str) -> tuple[str, int, str, object]:
    """Text, number of tokens, finish reason and stop reason; for min_tokens 0."""
    shown = ids[:-1] if end == "stop" and not params.include_stop_str_in_output else ids
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = ""
    for count, token in enumerate(shown, start=1):
        hidden = params.skip_special_tokens and token in TOKENIZER.special_ids
        piece = b"" if hidden else TOKENIZER.token_bytes(token)
        text += decoder.decode(piece, final=count == len(shown))
        if (found := stopped(text, params.stop_strings)) is not None:
            start, stop_end, stop = found
            text = text[: stop_end if params.include_stop_str_in_output else start]
            return text, count, "stop", stop
    return text, len(ids), end, None


def play(
    ids: list[int], cuts: tuple[int, ...], params: SamplingParams, end: str
) -> tuple[CompletionOutput, list[str], tuple[int, ...]]:
    """Tokens arrive in launches that end at the cuts. Returns the result, and texts and tokens of the stream."""
    request = Request("0", (1,), params, None, 1 + len(ids))  # type: ignore[arg-type]
    sample = Sample(request, TOKENIZER, (EOS,))
    texts, tokens = [], ()
    for start, stop in itertools.pairwise((0, *cuts, len(ids))):
        request.tokens.extend(ids[start:stop])
        request.scores.extend(Score(-float(i), 1, (), ()) for i in range(start, stop))
        if stop == len(ids):
            request.finish_reason = end  # type: ignore[assignment]
        delta = sample.advance()
        texts.append(delta.text)
        tokens += delta.token_ids
        assert len(delta.logprobs) == len(delta.token_ids)
        if sample.finished:
            break
    assert delta.finished
    return sample.completion(0), texts, tokens


def every_cut(count: int):
    places = range(1, count)
    return itertools.chain.from_iterable(
        itertools.combinations(places, n) for n in range(len(places) + 1)
    )


def check(ids: list[int], cuts: tuple[int, ...], params: SamplingParams, end: str) -> None:
    text, count, reason, stop = expected(ids, params, end)
    result, texts, tokens = play(ids, cuts, params, end)
    assert (result.text, result.finish_reason, result.stop_reason) == (text, reason, stop)
    assert result.token_ids == tokens == tuple(ids[:count])
    assert "".join(texts) == text
    assert result.cumulative_logprob == -sum(range(count))
    assert len(result.logprobs) == count


PARTY = by_bytes("é🎉€x")  # 2 + 4 + 3 + 1 bytes
SCRIPTS = {
    "characters of every length": (PARTY, {}, "length"),
    "an end token": ([*by_bytes("é🎉€"), EOS], {}, "stop"),
    "an end token that is shown": (
        [*by_bytes("é🎉€"), EOS],
        {"include_stop_str_in_output": True, "skip_special_tokens": False},
        "stop",
    ),
    "a character that never ends": ([*by_bytes("aé€"), *by_bytes("🎉")[:3], 5], {}, "length"),
    "an unfinished character at the end": (by_bytes("abcdé🎉")[:9], {}, "length"),
    "a stop string of many bytes": (PARTY, {"stop": ["🎉€"]}, "length"),
    "a stop string that is kept": (
        PARTY,
        {"stop": ["🎉€"], "include_stop_str_in_output": True},
        "length",
    ),
    "the earlier of two stop strings": (PARTY, {"stop": ["€x", "🎉"]}, "length"),
    "the longer of two that end together": (PARTY, {"stop": ["€", "é🎉€"]}, "length"),
    "the one that is complete first": (by_bytes("abcabcdabc"), {"stop": ["abcd", "cab"]}, "length"),
    "only the start of a stop string": (by_bytes("ab🎉ab🎉"), {"stop": ["b🎉b"]}, "length"),
    "a stop string before an end token": ([*by_bytes("a🎉€x"), EOS], {"stop": ["€"]}, "stop"),
    "the end of the text completes one": (by_bytes("abcdé🎉")[:9], {"stop": ["\ufffd"]}, "length"),
    "a stop string inside a token": (TOKENIZER.encode("return value of é"), {"stop": ["val"]}, "length"),
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_stream_equals_the_whole_for_every_cut(name):
    ids, given_settings, end = SCRIPTS[name]
    params = replace(PARAMS, **given_settings)
    for cuts in every_cut(len(ids)):
        check(ids, cuts, params, end)


def test_no_piece_of_a_valid_text_holds_part_of_a_character():
    for cuts in every_cut(len(PARTY)):
        _, texts, _ = play(PARTY, cuts, PARAMS, "length")
        assert set("".join(texts)) == set("é🎉€x")
        for place, text in zip((*cuts, len(PARTY)), texts, strict=True):
            whole = sum(place >= end for end in (2, 6, 9, 10))
            assert "é🎉€x"[:whole].endswith(text)


def test_text_that_a_stop_string_took_back_was_never_shown():
    ids = by_bytes("x🎉€🎉!")
    params = replace(PARAMS, stop=["€🎉!"])
    for cuts in every_cut(len(ids)):
        _, texts, _ = play(ids, cuts, params, "length")
        for count in range(len(texts)):
            assert "x🎉".startswith("".join(texts[: count + 1]))


def test_early_stop_strings_are_let_through_for_every_cut():
    ids = by_bytes("a€a€a€")[:10]
    for cuts in every_cut(len(ids)):
        result, texts, _ = play(ids, cuts, replace(PARAMS, stop=["€"], min_tokens=5), "length")
        assert result.text == "".join(texts) == "a€a"
        assert (len(result.token_ids), result.stop_reason) == (8, "€")


TEXT = st.text("aé€🎉b", max_size=6)


@settings(max_examples=300, deadline=None)
@given(
    TEXT.map(by_bytes) | TEXT.map(TOKENIZER.encode),
    st.lists(TEXT.filter(bool), max_size=3),
    st.booleans(),
    st.sets(st.integers(1, 24)),
    st.sampled_from(["length", "stop"]),
)
def test_any_text_any_stop_strings_any_cut(ids, stops, include, cuts, end):
    ids = [*ids, EOS] if end == "stop" or not ids else ids
    params = replace(PARAMS, stop=stops, include_stop_str_in_output=include)
    check(ids, tuple(sorted(cut for cut in cuts if cut < len(ids))), params, end)
