"""What `onecat bench kernels` and `onecat check --self-test` say on a machine without a GPU.

Oracle: the sentences that users are promised, and for the self-test float64 numpy inside the command itself. The figures of a
GPU aren't covered here.
"""

import json

import jax
import jax.numpy as jnp
import pytest

from onecat_jax.cli import self_test
from onecat_jax.cli.bench_kernels import parse_rows
from onecat_jax.cli.main import main
from onecat_jax.custom_calls.linear.samples import SAMPLES
from onecat_jax.custom_calls.paged_attention.specs import CACHES
from onecat_jax.errors import EngineError

ON_GPU = jax.default_backend() == "gpu"


@pytest.mark.skipif(ON_GPU, reason="there is a GPU to measure")
def test_without_a_gpu_the_kernels_are_not_measured(capsys):
    assert main(["bench", "kernels"]) == 2
    assert "onecat bench kernels needs an NVIDIA GPU, JAX runs on cpu" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "8,x", "0", "3,-1"])
def test_rows_that_are_no_numbers_are_refused(text):
    with pytest.raises(EngineError, match="must be positive numbers between commas"):
        parse_rows(text)
    assert parse_rows("1,16") == [1, 16]


def test_the_self_test_reports_every_kind_as_json(capsys):
    assert main(["check", "--self-test", "--json"]) in (0, 1)
    rows = json.loads(capsys.readouterr().out)["checks"]
    tested = {r["name"]: r["status"] for r in rows if r["name"].startswith("self-test")}
    names = [*SAMPLES, *(f"attention {cache}" for cache in CACHES)]
    assert tested == {f"self-test {name}": "ok" for name in names}


def test_a_wrong_kernel_fails_with_its_shape(monkeypatch):
    right = self_test.linear

    def wrong(x, weight, *args, **kwargs):
        y = right(x, weight, *args, **kwargs)
        return y.at[0, 0].add(jnp.where(x.shape[0] == 16, 1.0, 0.0))

    monkeypatch.setattr(self_test, "linear", wrong)
    row = next(self_test.self_test_rows())
    assert row.status == "fail"
    assert "[100, 288] with 16 rows is off by" in row.found
    assert "backend='plain'" in row.advice
