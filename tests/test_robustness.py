"""Odd use gives each caller its own right result or one clear sentence, and leaves the engine usable.

Oracle: the same engine with one request at a time; for input of a wrong kind, the class of the error. Embedded model, default
route, where equality is bitwise. Not covered: signals at moments that Python can't choose (inside a compiled program).
"""

import copy
import gc
import itertools
import math
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import checkpoints
import jax
import numpy as np
import pytest
from tiny_engine import GREEDY, PROMPTS, ids_of, tiny

from onecat_jax import LLM, SamplingParams
from onecat_jax.compile_cache import enable_compile_cache
from onecat_jax.errors import CheckpointError, ModelConfigError, RequestError
from onecat_jax.loading import locate
from onecat_jax.models.registry import resolve
from onecat_jax.outputs import StreamDelta
from onecat_jax.programs import Programs
from onecat_jax.request import Request
from onecat_jax.results import Sample
from onecat_jax.scheduler import PagePool
from onecat_jax.text import ChatTemplate

SAMPLED = SamplingParams(temperature=1.0, seed=7, max_tokens=20, ignore_eos=True)
CASES = ((PROMPTS[0], GREEDY), (PROMPTS[2], SAMPLED), ("import os\n" * 30, GREEDY))


@pytest.fixture(scope="module")
def llm():
    return tiny()


@pytest.fixture(scope="module")
def alone(llm) -> list[tuple[int, ...]]:
    return [ids_of(llm.generate(*case)[0]) for case in CASES]


@pytest.fixture(autouse=True)
def nothing_stays_behind(llm):
    pool = llm._engine.scheduler.pool
    free = sorted(pool.free_pages), sorted(pool.free_slots)
    yield
    assert not llm._engine.scheduler.busy
    assert (sorted(pool.free_pages), sorted(pool.free_slots)) == free


def tokens(deltas: Iterable[StreamDelta]) -> tuple[int, ...]:
    return sum((delta.token_ids for delta in deltas), ())


# Calls that overlap


def test_streams_read_in_turn_get_their_own_results(llm, alone):
    streams = [llm.stream(*case) for case in CASES * 2]  # more than rows
    turns = list(itertools.zip_longest(*streams, fillvalue=StreamDelta()))
    assert [tokens(turn) for turn in zip(*turns, strict=True)] == alone * 2


def test_generate_inside_the_loop_over_a_stream(llm, alone):
    deltas = []
    for delta in llm.stream(*CASES[0]):
        deltas.append(delta)
        assert ids_of(llm.generate(*CASES[1])[0]) == alone[1]
    assert tokens(deltas) == alone[0]


def test_streams_that_nobody_reads_on_hold_nobody_up(llm, alone):
    left = [llm.stream(*case) for case in CASES * 2]
    for stream in left[:4]:  # all rows
        next(stream)
    assert ids_of(llm.generate(*CASES[1])[0]) == alone[1]
    for stream in left:
        stream.close()


def test_a_stream_collected_while_another_runs(llm, alone):
    left, read = llm.stream(*CASES[2]), llm.stream(*CASES[1])
    next(left)
    deltas = [next(read)]
    del left
    gc.collect()
    assert tokens([*deltas, *read]) == alone[1]


def test_an_exception_of_the_reader_ends_its_request_alone(llm, alone):
    other = llm.stream(*CASES[1])
    deltas = [next(other)]
    stream = llm.stream(*CASES[0])
    next(stream)
    with pytest.raises(ZeroDivisionError):
        stream.throw(ZeroDivisionError())
    assert tokens([*deltas, *other]) == alone[1]


def test_threads_get_their_own_results(llm, alone):
    found: dict[int, tuple[int, ...]] = {}

    def work(number: int) -> None:
        case = CASES[number % 3]
        streamed = number % 2
        found[number] = tokens(llm.stream(*case)) if streamed else ids_of(llm.generate(*case)[0])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {number: alone[number % 3] for number in range(6)}


@pytest.mark.parametrize("at", [1, 2])  # the prefill, the first decode launch
def test_an_interrupt_between_program_and_state_loses_what_ran_and_nothing_else(
    llm, alone, monkeypatch, at
):
    calls = itertools.count(1)
    real = Programs.call

    def call(*args, **kwargs):
        result = real(*args, **kwargs)  # from here on the old state is gone
        if next(calls) == at:
            raise KeyboardInterrupt
        return result

    neighbour = llm.stream(*CASES[1])
    next(neighbour)
    with monkeypatch.context() as patch:
        patch.setattr(Programs, "call", call)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(*CASES[0])
    end = list(neighbour)[-1].output.outputs[0]
    assert (end.finish_reason, end.stop_reason) == (
        "error",
        "a launch was lost: KeyboardInterrupt",
    )
    assert ids_of(llm.generate(*CASES[0])[0]) == alone[0]


def test_requests_queue_for_a_small_cache_and_all_finish(llm, alone, monkeypatch):
    scheduler = llm._engine.scheduler
    small = PagePool(8, scheduler.pool.slots, scheduler.pool.page_size)
    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "pool", small)
        outputs = llm.generate([CASES[0][0], CASES[1][0]] * 5, [GREEDY, SAMPLED] * 5)
        with pytest.raises(RequestError, match="the cache has 7 pages"):
            llm.generate(*CASES[2])
    assert [ids_of(o) for o in outputs] == [alone[0], alone[1]] * 5


# Input of a wrong kind


@pytest.mark.parametrize(
    "prompts",
    [
        None, 5, 1.5, b"abc", bytearray(b"ab"), {1, 2}, {"a"}, object(), iter(["a"]), np.array(5), np.array([1.0]),
        [None], [[]], ["a", 1], [1, "a"], [[[1]]], {1: 2, "a": 3}, {"prompt": None}, {"prompt_token_ids": None},
        {"prompt_token_ids": "ab"}, {"prompt_token_ids": np.array(5)}, {"prompt_token_ids": {1}}, [2**70], "\ud800",
    ],
    ids=lambda value: ascii(value)[:30].split(" at 0x")[0],
)  # fmt: skip
def test_what_is_no_prompt_is_refused(llm, prompts):
    with pytest.raises(RequestError) as caught:
        llm.generate(prompts, GREEDY)
    assert len(str(caught.value)) < 300


def test_token_ids_of_any_sequence_or_array_are_one_prompt(llm):
    ids = llm.tokenizer.encode(PROMPTS[2])
    wanted = llm.generate(PROMPTS[2], GREEDY)[0].outputs[0].token_ids
    for same in (ids, tuple(ids), np.array(ids), np.array(ids, np.uint16), {"prompt": PROMPTS[2]}):
        assert [ids_of(o) for o in llm.generate(same, GREEDY)] == [wanted]
    assert [ids_of(o) for o in llm.generate(np.array([ids, ids]), GREEDY)] == [wanted] * 2
    assert llm.generate([], GREEDY) == []


@pytest.mark.parametrize(
    "params", [5, "ab", {"a": 1}, [None, None], [{}, {}], SamplingParams, iter([GREEDY, GREEDY])]
)
def test_what_is_no_sampling_params_is_refused(llm, params):
    with pytest.raises(RequestError, match="a SamplingParams or a list of them"):
        llm.generate(["a", "b"], params)
    with pytest.raises(RequestError):
        llm.stream("a", params)


@pytest.mark.parametrize(
    "messages",
    [None, 5, "hi", {"role": "user", "content": "a"}, iter([]), [5], [[], [5]], [{"role": "user", "tool_calls": 5}]],
    ids=lambda value: ascii(value).split(" at 0x")[0],
)  # fmt: skip
def test_what_is_no_conversation_is_refused(llm, messages):
    with pytest.raises(RequestError):
        llm.chat(messages, GREEDY)


@pytest.mark.parametrize("value", [10**400, -(10**400)])
def test_a_number_beyond_every_float_is_out_of_range(value):
    with pytest.raises(RequestError, match="temperature must lie in"):
        SamplingParams(temperature=value)


def test_the_largest_min_tokens_is_never_reached(llm):
    params = SamplingParams(max_tokens=None, min_tokens=2**31 - 1, temperature=0.0)
    output = llm.generate({"prompt_token_ids": [5] * 500}, params)[0].outputs[0]
    assert (len(output.token_ids), output.finish_reason) == (12, "length")


# Ends


def test_a_stop_string_completed_by_the_very_end_of_the_text_is_the_reason(llm):
    half = next(i for i in range(256) if llm.tokenizer.token_bytes(i) == b"\xe2")
    request = Request("0", (1,), SamplingParams(stop="\ufffd"), None, 2)  # type: ignore[arg-type]
    sample = Sample(request, llm.tokenizer, ())
    request.tokens, request.finish_reason = [half], "length"
    sample.advance()
    end = sample.completion(0)
    assert (end.text, end.finish_reason, end.stop_reason) == ("", "stop", "\ufffd")


@pytest.mark.parametrize("length", [1, 2, 64, 65, 129, 130, 511])
def test_every_prompt_token_but_the_first_is_scored(llm, length):
    ids = [(7 * i) % 8000 for i in range(length)]
    params = replace(GREEDY, max_tokens=1, prompt_logprobs=2, logprobs=0)
    output = llm.generate({"prompt_token_ids": ids}, params)[0]
    assert output.prompt_logprobs[0] is None
    scored = output.prompt_logprobs[1:]
    assert all(
        token in table and len(table) in (2, 3)
        for token, table in zip(ids[1:], scored, strict=True)
    )
    assert [len(table) for table in output.outputs[0].logprobs] == [1]


def test_two_engines_side_by_side_and_a_dropped_one_frees_its_memory(llm, alone):
    def held() -> int:
        gc.collect()
        return sum(array.nbytes for array in jax.live_arrays())

    before = held()
    second = LLM("tiny", max_model_len=512, max_num_seqs=4, max_num_batched_tokens=128)
    assert held() > before
    mine, other = second.stream(*CASES[0]), llm.stream(*CASES[1])
    turns = list(itertools.zip_longest(mine, other, fillvalue=StreamDelta()))
    assert [tokens(turn) for turn in zip(*turns, strict=True)] == alone[:2]
    del second, mine, turns
    assert held() == before


# The command line around a broken environment; none of these commands gets as far as loading a model


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("generate - <&-", 2, "the prompt is empty"),
        ("generate a --max-tokens -1 2>&-", 2, ""),
        ("generate a --max-tokens -1 2>/dev/full", 2, ""),
        ("--version >/dev/full", 1, "the output can't be written: No space left on device"),
        ("--version >&-", 0, ""),
        (r"generate - < <(printf 'ab\xff')", 2, "stdin isn't utf-8 text"),
        (r"chat --message - < <(printf 'ab\xff')", 2, "stdin isn't utf-8 text"),
    ],
)
def test_missing_and_broken_streams_end_in_a_sentence_and_a_code(command, code, message):
    line = f"{sys.executable} -m onecat_jax.cli.main {command}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert message in done.stderr


@pytest.fixture
def no_cache_folder():
    name = "jax_compilation_cache_dir"
    before = jax.config.values[name]
    jax.config.update(name, None)
    yield
    jax.config.update(name, before)


def test_a_cache_folder_that_cannot_be_made_is_one_warning(tmp_path, monkeypatch, no_cache_folder):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=r"compiled programs can't be kept .*Not a directory"):
        enable_compile_cache()
    monkeypatch.setattr(Path, "expanduser", _no_home)
    monkeypatch.delenv("XDG_CACHE_HOME")
    with pytest.warns(UserWarning, match="there is no home directory"):
        enable_compile_cache()
    assert jax.config.values["jax_compilation_cache_dir"] is None


def _no_home(path):
    raise RuntimeError("Could not determine home directory.")


# Checkpoint files beside the weights


def beside_tiny(folder: Path, name: str, content: str | bytes) -> Path:
    """The embedded model's folder by links, with one file of another content."""
    for source in locate("tiny").iterdir():
        if source.name != name:
            (folder / source.name).symlink_to(source)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", b"\xff", "tokenizer.json can't be read"),
        ("chat_template.jinja", b"\xff", "chat_template.jinja can't be read"),
        ("chat_template.jinja", "{% for i in [1] %}" * 30 + "{% endfor %}" * 30, "valid Jinja"),
        ("chat_template.jinja", "{% if 1 %}" * 200 + "{% endif %}" * 200, "valid Jinja"),
        ("chat_template.jinja", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "valid Jinja"),
        ("generation_config.json", '{"temperature": "hot"}', "generation_config.json: temperature"),
        ("generation_config.json", '{"top_k": 1.5}', "generation_config.json: top_k"),
        ("generation_config.json", '{"eos_token_id": "abc"}', "eos_token_id is abc"),
        ("generation_config.json", '{"eos_token_id": [[1]]}', "eos_token_id is"),
        ("generation_config.json", '{"eos_token_id": 1099511627776}', "eos_token_id is"),
        ("generation_config.json", f'{{"eos_token_id": {list(range(30))}}}', "end-of-sequence ids"),
    ],
)
def test_an_odd_file_beside_the_weights_is_named_before_they_are_read(
    tmp_path, name, content, message
):
    with pytest.raises(CheckpointError, match=message):
        LLM(str(beside_tiny(tmp_path, name, content)))


def test_a_template_that_needs_too_much_memory_is_a_refusal():
    with pytest.raises(RequestError, match="MemoryError"):
        ChatTemplate("{{ 'a' * 10**15 }}").render([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    "part", [{"type": "image", "image": "x"}, {"type": "text"}, {"type": "text", "text": 5}, None, "x"]
)  # fmt: skip
def test_a_part_that_the_model_would_not_see_is_refused(llm, part):
    text = {"type": "text", "text": "What is this?"}
    with pytest.raises(RequestError, match=r"messages\[0\].content\[1\]"):
        llm.chat([{"role": "user", "content": [text, part]}], GREEDY)


def test_tokens_that_the_model_has_no_embedding_for_are_refused(llm, monkeypatch):
    known = replace(llm._engine.options, vocab_size=200)
    monkeypatch.setattr(llm._engine, "options", known)
    with pytest.raises(RequestError, match="the model knows 200 tokens"):
        llm.generate("def function(x):", GREEDY)
    with pytest.raises(RequestError, match="an integer from 0 to 199"):
        llm.generate({"prompt_token_ids": [200]}, GREEDY)


ODD = (
    None,
    "x",
    0,
    -1,
    10**9,
    10**400,
    1.5,
    math.nan,
    math.inf,
    True,
    [],
    [1],
    [[1]],
    {},
    {"a": 1},
)


def fields_of(config: dict, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in config.items():
        yield (*path, name)
        if isinstance(value, dict):
            yield from fields_of(value, (*path, name))


def test_any_odd_field_of_a_config_is_accepted_or_named():
    sound = checkpoints.config_json(checkpoints.SMALL)
    more = ("full_attention_interval", "rope_scaling", "text_config", "attn_output_gate")
    for path in (*fields_of(sound), *((name,) for name in more)):
        for value, listed in itertools.product(ODD, (True, False)):
            config = copy.deepcopy(sound)
            if not listed:
                del config["layer_types"]  # then full_attention_interval counts
            place = config if len(path) == 1 else config[path[0]]
            place[path[-1]] = value
            try:
                read = resolve(config).read_config(config)
            except ModelConfigError:
                continue
            assert 0 < read.rope_theta < math.inf
            assert 0 < read.rms_norm_eps < math.inf
