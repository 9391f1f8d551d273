"""Figures of llama.cpp's bench tool are read under the names of our own bench, or refused by line."""

import importlib.util
import json
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "bench" / "peer_llama.py"
spec = importlib.util.spec_from_file_location("peer_llama", PATH)
peer_llama = importlib.util.module_from_spec(spec)
spec.loader.exec_module(peer_llama)


def written(tmp_path: Path, *rows: dict) -> Path:
    path = tmp_path / "llama.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_prompt_and_generation_lines_get_our_names(tmp_path):
    rows = (
        {"n_prompt": 512, "n_gen": 0, "avg_ts": 100.5},
        {"n_prompt": 0, "n_gen": 128, "avg_ts": 20},
    )
    found = peer_llama.read_figures(written(tmp_path, *rows))
    assert found == {"prefill_512": 100.5, "decode_batch1": 20.0}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"n_prompt": 512, "n_gen": 128, "avg_ts": 1}, "n_prompt 512 with n_gen 128"),
        ({"n_prompt": 512, "avg_ts": 1}, "n_gen"),
        ([], "needed"),
    ],
)
def test_another_line_is_refused_with_its_number(tmp_path, row, message):
    with pytest.raises(ValueError, match=rf"line 1: .*{message}"):
        peer_llama.read_figures(written(tmp_path, row))
