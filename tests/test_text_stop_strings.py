"""Stop strings across token borders, and the text of a sample as its tokens come.

Oracle: a reader that looks at one more character at a time and asks which stop strings the text ends with. Alphabets are small
so that partial matches, overlaps and stop strings inside stop strings are common.
"""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from onecat_jax.sampling_params import SamplingParams
from onecat_jax.text import TextStream, Tokenizer
from onecat_jax.text.stop_strings import StopScanner

TOKENIZER = Tokenizer.from_directory(
    Path(__file__).resolve().parents[1] / "onecat_jax/assets/tiny/target"
)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=4)


def reference(text: str, stops: list[str], *, include: bool) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[:end] if include else text[: end - len(stop)], stop
    return text, None


def scan(pieces: list[str], stops: list[str], *, include: bool) -> tuple[str, str | None]:
    scanner, shown = StopScanner(stops, include=include), ""
    for piece in pieces:
        result = scanner.push(piece)
        shown += result.text
        if result.matched is not None:
            return shown, result.matched
    return shown + scanner.finish(), None


@settings(max_examples=600, deadline=None)
@given(st.lists(st.text("abc", max_size=4), max_size=8), STOPS, st.booleans())
def test_the_first_complete_stop_string_ends_the_text_for_every_cut(pieces, stops, include):
    text = "".join(pieces)
    want = reference(text, stops, include=include)
    assert scan(pieces, stops, include=include) == want
    assert scan(list(text), stops, include=include) == want
    assert scan([text], stops, include=include) == want


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("abc", max_size=4), max_size=8), STOPS)
def test_only_text_that_may_become_a_stop_string_is_held_back(pieces, stops):
    scanner, shown, seen = StopScanner(stops), "", ""
    for piece in pieces:
        result = scanner.push(piece)
        shown, seen = shown + result.text, seen + piece
        if result.matched is not None:
            return
        assert seen.startswith(shown)
        held = seen[len(shown) :]
        starts = [stop[:n] for stop in stops for n in range(len(stop))]
        assert held == max((s for s in starts if seen.endswith(s)), key=len, default="")


def stream(ids: list[int], **settings) -> tuple[str, list[str], TextStream]:
    text, parts = TextStream(TOKENIZER, SamplingParams(max_tokens=999, **settings)), []
    for index in ids:
        parts.append(text.push(index))
        if text.matched is not None:
            break
    parts.append(text.finish())
    return text.text, parts, text


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 8191), max_size=25),
    st.lists(st.text("et na", min_size=1, max_size=3), max_size=3),
)
def test_streamed_text_equals_the_stopped_decode_of_the_whole(ids, stops):
    whole, parts, result = stream(ids, stop=stops)
    want, matched = reference(TOKENIZER.decode(ids), stops, include=False)
    assert ("".join(parts), result.matched) == (want, matched)
    assert whole == want


def test_a_stop_string_inside_a_token_drops_the_rest_of_that_token():
    ids = TOKENIZER.encode("return value")
    text, _, result = stream(ids, stop=["tur"])
    assert (text, result.matched) == ("re", "tur")


def test_the_stop_string_is_kept_if_asked_for():
    text, *_ = stream(TOKENIZER.encode("return value"), stop="tur", include_stop_str_in_output=True)
    assert text == "retur"


def test_min_tokens_hides_early_stop_strings():
    ids = TOKENIZER.encode("a b a b a b")
    assert stream(ids, stop="a")[0] == ""
    text, _, result = stream(ids, stop="a", min_tokens=3)
    assert result.matched == "a"
    assert text == TOKENIZER.decode(ids)[: len(text)]
    assert len(text) > 3


def test_the_text_of_a_stop_token_is_left_out_unless_asked_for():
    newline = TOKENIZER.encode("\n")[0]
    for include, want in ((False, "a"), (True, "a\n")):
        text = TextStream(TOKENIZER, SamplingParams(include_stop_str_in_output=include))
        for index in TOKENIZER.encode("a"):
            text.push(index)
        text.push(newline, is_stop=True)
        text.finish()
        assert text.text == want


def test_without_detokenising_there_is_no_text():
    text, parts, _ = stream(TOKENIZER.encode("return value"), detokenize=False)
    assert text == ""
    assert not any(parts)


def test_an_unfinished_character_is_released_at_the_end():
    ids = [TOKENIZER.token_id("ð")]
    assert stream(ids, stop="x")[1] == ["", "\ufffd"]
