"""Every damaged or contradictory checkpoint of the corpus gets its sentence, and no command ends in a traceback.

Oracle: the damage that corpus.py did. `info` reads headers, `check` reads values too, `generate` loads.
"""

import re
import shutil
from functools import cache
from pathlib import Path

import pytest
from corpus import CASES
from corpus_case import Case, make

from onecat_jax.cli.main import main
from onecat_jax.loading.hub import embedded

STORED = re.compile(r"model\S+ \(model\.safetensors, [A-Z]+\d*(_E\dM\d)? \[[\d, ]*\]\)")
FILE = re.compile(r"\w+\.json\b|/model\.safetensors\b|holds no weights")
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory):
    @cache
    def made(name: str) -> Path:
        folder = make(CASES[name], tmp_path_factory.mktemp("case"))
        for file in TOKENIZER:
            shutil.copy(embedded("target") / file, folder / file)
        return folder

    return made


def said(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return out + err


def test_the_corpus_is_large_and_varied():
    assert len(CASES) >= 80
    assert {case.shows for case in CASES.values()} == {"headers", "values", "load"}


def of(*shows: str) -> list[str]:
    return [name for name, case in CASES.items() if case.shows in shows]


@pytest.mark.parametrize("name", of("headers"))
def test_info_refuses_what_headers_show(folder_of, capsys, name: str):
    assert main(["info", str(folder_of(name))]) == 2
    assert CASES[name].message in said(capsys)


@pytest.mark.parametrize("name", of("values", "load"))
def test_info_reports_what_headers_do_not_show(folder_of, capsys, name: str):
    assert main(["info", str(folder_of(name))]) == 0
    assert "plan on" in said(capsys)


@pytest.mark.parametrize("name", CASES)
def test_check_finds_what_is_wrong_with_single_tensors(folder_of, capsys, name: str):
    case: Case = CASES[name]
    expected = {"headers": 2, "values": 1, "load": 0}[case.shows]
    assert main(["check", str(folder_of(name))]) == expected
    text = said(capsys)
    assert (case.message in text) == (case.shows != "load")


@pytest.mark.parametrize("name", CASES)
def test_generate_refuses_and_names_the_culprit_with_file_dtype_and_shape(folder_of, capsys, name):
    """A tensor, where tensors were damaged; else the file that is wrong as a whole may do."""
    assert main(["generate", "--model", str(folder_of(name)), "--quiet", "x"]) == 2
    text, tensors_are_whole = said(capsys), CASES[name].damage is Case.damage
    assert CASES[name].message in text
    assert STORED.search(text) or (tensors_are_whole and FILE.search(text))
