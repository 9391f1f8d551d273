"""The commands generate and chat, and the entry point around them.

Oracle: a scripted engine (scripted_llm.py), so that every byte of the output is known. Not covered here: real models.
"""

import io
import json
import os
import subprocess
import sys

import pytest
from scripted_llm import Script, module_for

from onecat_jax.cli.main import COMMANDS, main
from onecat_jax.errors import CheckpointError, RequestError

FIGURES = (
    "[4 prompt tokens, 3 tokens, 8.0 tok/s, first token 0.50 s, compile 3.2 s, finish: stop]\n"
)


@pytest.fixture
def script(monkeypatch) -> Script:
    script = Script()
    monkeypatch.setitem(sys.modules, "onecat_jax.llm", module_for(script))
    return script


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_generate_streams_the_text_and_ends_with_the_figures(script, capsys):
    assert main(["generate", "Say"]) == 0
    out, err = capsys.readouterr()
    assert out == "Hello\n" + FIGURES
    assert err == ""
    assert script.asked[0][0] == "Say"


@pytest.mark.parametrize("options", [["--quiet"], ["--quiet", "--no-stream"]])
def test_quiet_leaves_the_text_alone(script, capsys, options):
    assert main(["generate", "Say", *options]) == 0
    assert capsys.readouterr().out == "Hello\n"


def test_text_that_ends_its_line_gets_no_second_newline(script, capsys):
    script.pieces = ("a\n",)
    main(["generate", "Say", "--quiet"])
    assert capsys.readouterr().out == "a\n"


def test_text_appears_as_it_comes(script, monkeypatch):
    class Recorder(io.StringIO):
        seen: tuple[str, ...] = ()

        def flush(self) -> None:
            self.seen += (self.getvalue(),)

    recorder = Recorder()
    monkeypatch.setattr(sys, "stdout", recorder)
    main(["generate", "Say", "--quiet"])
    assert recorder.seen[:2] == ("Hel", "Hello")


def test_json_is_one_object_with_ids_text_reason_and_figures(script, capsys):
    assert main(["generate", "Say", "--json", "--logprobs", "1"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["prompt_token_ids"] == [1, 2, 3, 4]
    assert (result["token_ids"], result["text"]) == ([0, 1, 2], "Hello")
    assert (result["finish_reason"], result["cumulative_logprob"]) == ("stop", -1.5)
    assert result["figures"]["decode_tokens_per_second"] == 8.0
    assert result["figures"]["compile_seconds"] == 3.25
    first = result["logprobs"][0]
    assert (first["token"], first["logprob"], first["rank"]) == ("Hel", -0.5, 1)
    assert [entry["token_id"] for entry in first["top"]] == [0, 9]


def test_logprobs_follow_the_text_one_line_per_token(script, capsys):
    main(["generate", "Say", "--quiet", "--logprobs", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["Hello", "'Hel' -0.5000 #1  'x' -1.5000 #2"]
    assert len(lines) == 4


def test_settings_override_the_checkpoints_and_the_rest_follows_it(script):
    options = [
        "--max-tokens",
        "5",
        "--top-p",
        "0.5",
        "--seed",
        "3",
        "--stop",
        "a",
        "--stop",
        "b",
        "--ignore-eos",
    ]
    main(["generate", "Say", *options])
    params = script.asked[0][1]
    assert (params.temperature, params.top_k) == (0.7, 20)
    assert (params.max_tokens, params.top_p, params.seed) == (5, 0.5, 3)
    assert (params.stop_strings, params.ignore_eos) == (("a", "b"), True)


def test_penalties_and_biases_reach_the_request(script):
    penalties = "--presence-penalty -0.5 --frequency-penalty 1 --repetition-penalty 1.2"
    biases = "--logit-bias 7=-100 --logit-bias 3=0.5"
    main(["generate", "Say", *penalties.split(), *biases.split()])
    params = script.asked[0][1]
    assert (params.presence_penalty, params.frequency_penalty) == (-0.5, 1)
    assert (params.repetition_penalty, params.biases) == (1.2, ((3, 0.5), (7, -100)))


def test_engine_options_reach_the_engine_only_if_given(script):
    main(["generate", "Say", "--model", "m", "--dtype", "half", "--max-model-len", "99"])
    given = script.arguments
    assert (given["model"], given["dtype"], given["max_model_len"]) == ("m", "half", 99)
    assert "tensor_parallel_size" not in given
    assert given["progress"] is None


def test_a_dash_reads_stdin_as_it_is(script, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(" two\nlines\n"))
    main(["generate", "-"])
    assert script.asked[0][0] == " two\nlines\n"


def test_bytes_on_stdin_that_are_no_text_are_refused(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8"))
    assert main(["generate", "-"]) == 2
    assert "stdin isn't utf-8 text" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["generate", ""], "the prompt is empty"),
        (["generate", "x", "--temperature", "-1"], "temperature must lie in [0, inf)"),
        (["generate", "x", "--top-p", "0"], "top_p must lie in (0, 1]"),
        (["generate", "x", "--logprobs", "21"], "logprobs must lie between 0 and 20"),
        (["chat", "--message", "x", "--stop", ""], "stop holds an empty string"),
        (["generate", "x", "--logit-bias", "1=101"], "must lie in [-100, 100]"),
    ],
)
def test_a_wrong_value_is_one_sentence_and_exit_code_2(script, capsys, arguments, reason):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("onecat: ")
    assert reason in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["generate"],
        ["fly"],
        ["generate", "x", "--max-tokens", "y"],
        ["generate", "x", "--logit-bias", "7"],
        ["generate", "x", "--logit-bias", "7=much"],
    ],
)
def test_a_wrong_command_line_is_exit_code_2_with_usage(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage: onecat" in capsys.readouterr().err


def test_a_checkpoint_that_cannot_be_used_is_exit_code_2(script, capsys):
    script.load_error = CheckpointError("no such folder: m; name one that exists.")
    assert main(["generate", "x"]) == 2
    assert capsys.readouterr().err == "onecat: no such folder: m; name one that exists.\n"


def test_a_request_that_fails_in_the_engine_is_exit_code_1(script, capsys):
    script.finish_reason, script.stop_reason = "error", "NaN in layer 3 at step 2."
    assert main(["generate", "x"]) == 1
    assert capsys.readouterr().err == "onecat: the request failed: NaN in layer 3 at step 2.\n"


def test_an_interrupt_is_exit_code_130(script):
    script.interrupt_after = 1
    assert main(["generate", "x"]) == 130


def test_other_exceptions_propagate_with_a_note(script):
    script.refuse = KeyError("bug")
    with pytest.raises(KeyError) as error:
        main(["generate", "x"])
    assert "please report it" in error.value.__notes__[0]


def test_chat_asks_one_message(script, capsys):
    assert main(["chat", "--message", "Hi", "--system", "Be brief.", "--thinking"]) == 0
    messages, params, kwargs = script.asked[0]
    assert [m["role"] for m in messages] == ["system", "user"]
    assert params.max_tokens == 512
    assert kwargs == {"enable_thinking": True}
    assert capsys.readouterr().out == "Hello\n" + FIGURES


@pytest.mark.parametrize(
    ("flag", "kwargs"), [([], None), (["--no-thinking"], {"enable_thinking": False})]
)
def test_thinking_follows_the_template_unless_said(script, flag, kwargs):
    main(["chat", "--message", "Hi", *flag])
    assert script.asked[0][2] == kwargs


def talk(monkeypatch, lines: str, *options: str, terminal: bool = True) -> int:
    stdin = Terminal(lines) if terminal else io.StringIO(lines)
    monkeypatch.setattr(sys, "stdin", stdin)
    return main(["chat", "--quiet", *options])


def test_a_conversation_keeps_its_history_until_reset(script, monkeypatch):
    assert talk(monkeypatch, "one\ntwo\n/reset\nthree\n/exit\nfour\n", "--system", "S") == 0
    texts = [[m["content"] for m in messages] for messages, *_ in script.asked]
    assert texts == [["S", "one"], ["S", "one", "Hello", "two"], ["S", "three"]]


def test_a_pipe_may_hold_several_messages(script, monkeypatch, capsys):
    assert talk(monkeypatch, "one\n\ntwo", "--json", terminal=False) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["Hello", "Hello"]
    assert err == ""
    assert len(script.asked) == 2


def test_thoughts_of_earlier_turns_are_kept_apart_from_the_answer(script, monkeypatch):
    script.pieces = ("hm\n</think>\n\n", "Yes.")
    talk(monkeypatch, "one\ntwo\n")
    answer = script.asked[1][0][1]
    assert answer == {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"}


def test_at_a_terminal_an_interrupt_stops_the_answer_and_forgets_the_message(script, monkeypatch):
    script.interrupt_after = 1
    assert talk(monkeypatch, "one\ntwo\n") == 0
    assert [len(messages) for messages, *_ in script.asked] == [1, 1]
    assert script.closed == 2


def test_at_a_terminal_a_refusal_ends_the_message_only(script, monkeypatch, capsys):
    script.refuse = RequestError("too long: 9 tokens, 8 allowed.")
    assert talk(monkeypatch, "one\ntwo\n") == 0
    assert capsys.readouterr().err.count("onecat: too long") == 2


def test_in_a_pipe_a_refusal_ends_everything(script, monkeypatch):
    script.refuse = RequestError("too long.")
    assert talk(monkeypatch, "one\ntwo\n", terminal=False) == 2
    assert len(script.asked) == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"examples:\n  onecat {command}" in capsys.readouterr().out


def run_python(code: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )


def test_help_does_not_wait_for_jax():
    code = (
        "import sys\nfrom onecat_jax.cli.main import COMMANDS, build_parser\n"
        "for command in (None, *COMMANDS): build_parser(command)\n"
        "print([name for name in ('jax', 'tokenizers', 'tqdm') if name in sys.modules])"
    )
    assert run_python(code).stdout == "[]\n"


def test_a_closed_pipe_is_quiet():
    code = (
        "import sys\nfrom scripted_llm import Script, module_for\n"
        "sys.modules['onecat_jax.llm'] = module_for(Script(pieces=('x' * 4096,) * 64))\n"
        "from onecat_jax.cli.main import main\nsys.exit(main(['generate', 'x']))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141
