"""Reading ahead: what is fetched, when and in which order. Oracle: the calls of `fetch` and of the system.

Not covered: that reading ahead is fast, which bench/bench_loading.py measures.
"""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from checkpoints import SMALL, Style, tensor_specs, write_checkpoint
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from onecat_jax.loading import Checkpoint
from onecat_jax.loading.checkpoint_tensors import CheckpointTensors
from onecat_jax.loading.read_ahead import FAR, NEAR, THREAD, ReadAhead
from onecat_jax.loading.safetensors_file import SafetensorsFile
from onecat_jax.loading.sources import find_sources

ONE = NEAR // 2  # bytes of a name
AT_ONCE = FAR // ONE


def settle() -> None:
    """Waits until no thread reads ahead."""
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join(10)
            assert not thread.is_alive()


class Ahead(ReadAhead):
    """Names of one size, and what was fetched of them."""

    def __init__(self, size: int = ONE):
        self._fetched: list[str] = []
        super().__init__(lambda _: size, self._fetched.append)

    @property
    def fetched(self) -> list[str]:
        settle()
        return list(self._fetched)


def names(count: int) -> list[str]:
    return [f"t{i}" for i in range(count)]


def test_names_are_fetched_in_order_and_no_more_than_the_bound():
    ahead = Ahead()
    ahead.expect(names(10 * AT_ONCE))
    assert ahead.fetched == names(AT_ONCE)


def test_what_is_read_makes_room_for_as_much():
    ahead, every = Ahead(), names(10 * AT_ONCE)
    ahead.expect(every)
    for done in range(1, 9 * AT_ONCE):
        ahead.reached(every[done - 1], ())
        assert ahead.fetched == every[: AT_ONCE + done]


def test_a_name_larger_than_the_bound_is_fetched_alone():
    ahead = Ahead(2 * FAR)
    ahead.expect(names(3))
    assert ahead.fetched == names(1)
    ahead.reached("t0", ())
    assert ahead.fetched == names(2)


def test_a_reader_far_behind_in_the_order_gets_what_follows_it_and_nothing_beyond():
    ahead, every = Ahead(), names(10 * AT_ONCE)
    ahead.expect(every)
    at = 5 * AT_ONCE
    ahead.reached(every[at], every[at + 1 :])
    near = NEAR // ONE
    assert ahead.fetched == every[:AT_ONCE] + every[at : at + 1 + near]


def test_names_are_fetched_once_until_they_are_read_again():
    ahead = Ahead()
    for _ in range(2):
        ahead.expect(["a", "b"])
        ahead.reached("a", ["b"])
        ahead.reached("b", ())
    assert ahead.fetched == ["a", "b"]
    ahead.again(["a", "b"])
    assert ahead.fetched == ["a", "b", "a", "b"]


def test_names_that_nobody_expected_are_not_fetched():
    ahead = Ahead()
    ahead.reached("a", ["b"])
    assert ahead.fetched == []


@given(st.lists(st.lists(st.integers(0, 40), max_size=12), max_size=8), st.randoms())
def test_whatever_order_names_are_read_in_each_is_fetched_once(groups, random):
    ahead = Ahead()
    for group in groups:
        ahead.expect([f"t{i}" for i in group])
    expected = list(dict.fromkeys(f"t{i}" for group in groups for i in group))
    order = random.sample(expected, len(expected))
    for at, name in enumerate(order):
        ahead.reached(name, order[at + 1 :])
    assert sorted(ahead.fetched) == sorted(expected)


def test_several_readers_at_once_fetch_each_name_once():
    ahead, every = Ahead(1 << 20), names(800)
    ahead.expect(every)

    def read(part: list[str]) -> None:
        for at, name in enumerate(part):
            ahead.reached(name, part[at + 1 :])

    readers = [threading.Thread(target=read, args=(every[i::4],)) for i in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert sorted(ahead.fetched) == sorted(every)


@pytest.fixture
def advised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(offset, bytes) that the system was asked to read."""
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, at, size, __: calls.append((at, size)))
    return calls


def test_the_system_is_asked_for_the_bytes_of_a_tensor_and_little_more(tmp_path: Path, advised):
    save_file({"a": np.zeros(300_000), "b": np.zeros(3), "c": np.zeros(0)}, tmp_path / "x")
    file = SafetensorsFile.open(tmp_path / "x")
    for name, info in file.tensors.items():
        advised.clear()
        file.will_read(name)
        asked = sorted(set().union(*(range(at, at + size, 1 << 12) for at, size in advised)))
        assert len(asked) * 4096 - info.nbytes < 128 << 10
        assert bool(asked) == bool(info.nbytes)
        if asked:
            assert asked[0] <= info.offset
            assert asked[-1] + 4096 >= info.offset + info.nbytes


def test_a_file_that_went_away_is_no_error_before_it_is_read(tmp_path: Path):
    save_file({"a": np.zeros(3)}, tmp_path / "x")
    file = SafetensorsFile.open(tmp_path / "x")
    (tmp_path / "x").unlink()
    file.will_read("a")


@pytest.mark.parametrize("naming", ["dense", "modelopt"])
def test_every_rank_reads_ahead_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, naming: str
):
    """All stored parts of a site's tensors, once per rank."""
    checkpoint = Checkpoint.open(write_checkpoint(tmp_path, SMALL, Style(naming=naming)))
    sources = find_sources(checkpoint, tensor_specs(SMALL))
    fetched: list[str] = []
    monkeypatch.setattr(SafetensorsFile, "will_read", lambda _, name: fetched.append(name))
    tensors = CheckpointTensors(checkpoint, sources, 2)
    site = [f"layers.0.mlp.{name}_proj.weight" for name in ("gate", "up")]
    parts = [part for name in site for part in sources[name].parts]
    tensors.expect(site)
    with tensors.site(site) as piece:
        for rank in range(2):
            for name in site:
                piece(name, rank)
            settle()
            assert fetched == parts * (rank + 1)
