"""Tokenizer and incremental detokeniser.

Oracle: one decode of the whole sequence by the tokenizers library. Sequences are random ids of the embedded model, so that most
are no valid UTF-8, and encodings of random text; every cut is allowed.
"""

import itertools
import json
import shutil
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from onecat_jax.errors import CheckpointError, RequestError
from onecat_jax.text import Tokenizer
from onecat_jax.text.byte_level import BYTE_OF
from onecat_jax.text.detokenizer import Detokenizer

MODEL = Path(__file__).resolve().parents[1] / "onecat_jax/assets/tiny/target"
TOKENIZER = Tokenizer.from_directory(MODEL)
WHOLE = tokenizers.Tokenizer.from_file(str(MODEL / "tokenizer.json"))
# Half of the draws are single-byte tokens and control tokens, where characters get cut.
SINGLE_BYTES = [TOKENIZER.token_id(character) for character in BYTE_OF]
IDS = st.one_of(st.sampled_from(SINGLE_BYTES), st.integers(0, 8191), st.integers(8180, 8195))


def in_pieces(ids: list[int], cuts: list[int], *, skip: bool) -> str:
    detokenizer = Detokenizer(TOKENIZER, skip_special_tokens=skip)
    borders = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    parts = [detokenizer.push(ids[a:b]) for a, b in itertools.pairwise(borders)]
    return "".join(parts) + detokenizer.finish()


@settings(max_examples=400, deadline=None)
@given(st.lists(IDS, max_size=30), st.lists(st.integers(0, 30), max_size=6), st.booleans())
def test_a_stream_of_any_ids_equals_the_whole_for_every_cut(ids, cuts, skip):
    want = WHOLE.decode(ids, skip_special_tokens=skip)
    assert in_pieces(ids, cuts, skip=skip) == want
    assert in_pieces(ids, list(range(len(ids))), skip=skip) == want
    assert TOKENIZER.decode(ids, skip_special_tokens=skip) == want


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_text_comes_back_from_its_ids_token_by_token(text):
    ids = TOKENIZER.encode(text)
    assert ids == WHOLE.encode(text).ids
    assert in_pieces(ids, list(range(len(ids))), skip=False) == WHOLE.decode(
        ids, skip_special_tokens=False
    )


def test_a_character_appears_only_when_its_last_byte_has_come():
    ids = [TOKENIZER.token_id(c) for c in ("ð", "Ł", "İ", "ī")]  # the four bytes of one emoji
    detokenizer = Detokenizer(TOKENIZER)
    assert [detokenizer.push([index]) for index in ids] == ["", "", "", "🎉"]
    assert detokenizer.finish() == ""


def test_a_character_that_never_ends_becomes_one_replacement_character():
    detokenizer = Detokenizer(TOKENIZER)
    assert detokenizer.push([TOKENIZER.token_id("ð"), TOKENIZER.token_id("Ł")]) == ""
    assert detokenizer.finish() == "\ufffd"


def test_control_tokens_are_left_out_unless_asked_for():
    ids = TOKENIZER.encode("a<|im_end|><think>b")
    assert in_pieces(ids, [], skip=True) == "a<think>b"
    assert in_pieces(ids, [], skip=False) == "a<|im_end|><think>b"


def test_ends_and_banned_ids_are_those_of_the_checkpoint():
    assert TOKENIZER.eos_ids == (8184, 8182)
    mask = TOKENIZER.banned_mask(8200)
    assert mask.nonzero()[0].tolist() == [8191, *range(8192, 8200)]
    assert TOKENIZER.vocab_size == 8192


def test_the_byte_alphabet_has_every_byte_once():
    assert sorted(BYTE_OF.values()) == list(range(256))


def copy_with(tmp_path: Path, **files) -> Path:
    shutil.copy(MODEL / "tokenizer.json", tmp_path)
    for name, value in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    return tmp_path


@pytest.mark.parametrize(
    ("files", "ids"),
    [
        ({"generation_config": {"eos_token_id": 8182}}, (8182,)),
        (
            {
                "generation_config": {"eos_token_id": [8182]},
                "tokenizer_config": {"eos_token": {"content": "<|im_end|>"}},
            },
            (8182, 8184),
        ),
        ({"config": {"text_config": {"eos_token_id": 8190}}}, (8190,)),
        ({}, ()),
    ],
)
def test_end_ids_are_joined_from_the_files_that_name_them(tmp_path, files, ids):
    assert Tokenizer.from_directory(copy_with(tmp_path, **files)).eos_ids == ids


def test_a_missing_tokenizer_is_named_with_what_to_do(tmp_path):
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json; put the tokenizer files"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize("content", ["{", "{}", '{"model": 3}'])
def test_a_damaged_tokenizer_is_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match="can't be read"):
        Tokenizer.from_directory(tmp_path)


def test_another_kind_of_tokenizer_is_refused(tmp_path):
    description = json.loads((MODEL / "tokenizer.json").read_text())
    description["decoder"] = {"type": "Fuse"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    with pytest.raises(CheckpointError, match="Fuse; only byte-level"):
        Tokenizer.from_directory(tmp_path)


def test_text_that_is_no_unicode_is_refused():
    with pytest.raises(RequestError, match="unpaired surrogate at character 1"):
        TOKENIZER.encode("a\udcff")
