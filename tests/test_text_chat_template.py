"""Chat templates.

Oracle: renderings and token ids by transformers, stored in golden/chat.json (oracle/make_chat.py makes it again) and, where
transformers is installed, made afresh. Not covered: templates of models that aren't embedded, beyond the constructs below.
"""

import copy
import datetime
import json
import re
from pathlib import Path

import pytest
from chat_cases import CASES, WEATHER

from onecat_jax.errors import CheckpointError, RequestError
from onecat_jax.text import ChatTemplate, Tokenizer

MODEL = Path(__file__).resolve().parents[1] / "onecat_jax/assets/tiny/target"
GOLDEN = json.loads((Path(__file__).parent / "golden/chat.json").read_text(encoding="utf-8"))
USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_directory(MODEL)


@pytest.fixture(scope="module")
def template(tokenizer) -> ChatTemplate:
    return ChatTemplate.from_directory(MODEL, special_tokens=tokenizer.special_tokens)


def render(source: str, *messages, **options) -> str:
    return ChatTemplate(source).render(messages or [USER], **options)


@pytest.mark.parametrize("name", CASES)
def test_text_and_ids_equal_the_stored_renderings(name, template, tokenizer):
    text = template.render(**CASES[name])
    assert text == GOLDEN["cases"][name]["text"]
    assert tokenizer.encode(text, add_special_tokens=False) == GOLDEN["cases"][name]["ids"]


@pytest.mark.oracle
@pytest.mark.parametrize("name", CASES)
def test_text_equals_a_fresh_rendering(name, template):
    transformers = pytest.importorskip("transformers")
    case = dict(CASES[name])
    options = case.pop("chat_template_kwargs", {})
    case.setdefault("add_generation_prompt", True)
    peer = transformers.AutoTokenizer.from_pretrained(MODEL)
    assert template.render(**CASES[name]) == peer.apply_chat_template(
        case.pop("messages"), tokenize=False, **case, **options
    )


def test_blocks_are_trimmed_like_hugging_face_does():
    source = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\nend"
    assert render(source) == "hi\nend"


def test_tojson_keeps_html_and_unicode_and_takes_options():
    source = "{{ tools | tojson }}{{ {'b': 1, 'a': '<é>'} | tojson(indent=1, sort_keys=true) }}"
    text = render(source, tools=[WEATHER])
    assert "<now> & later, in °C" in text
    assert text.endswith('{\n "a": "<é>",\n "b": 1\n}')


def test_loop_controls_and_the_generation_tag_work():
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    assert render(source, USER, USER) == "hi"


def test_the_date_is_that_of_now():
    assert render("{{ strftime_now('%Y') }}") == str(datetime.datetime.now().year)


def test_special_tokens_and_extra_variables_reach_the_template():
    template = ChatTemplate("{{ eos_token }}{{ mood }}", special_tokens={"eos_token": "</s>"})
    assert template.render([USER], chat_template_kwargs={"mood": "x"}) == "</s>x"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "refused the messages"),
        ("{{ messages[5].content.x }}", "refused the messages"),
        ("{{ 1 // 0 }}", "refused the messages"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "refused the messages"),
    ],
)
def test_what_a_template_raises_is_the_requests_error(source, reason):
    with pytest.raises(RequestError, match=reason):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os }}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(source):
    with pytest.raises(RequestError):
        render(source)


def test_a_broken_template_is_the_checkpoints_error():
    with pytest.raises(CheckpointError, match="valid Jinja"):
        ChatTemplate("{% for %}")


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "empty"),
        ("hi", "list"),
        ([3], r"messages\[0\]"),
        ([USER, {"content": "x"}], r"messages\[1\] needs a role"),
        ([{"role": "user", "content": 3}], r"messages\[0\].content"),
        ([{"role": "assistant", "tool_calls": ["x"]}], "tool_calls"),
    ],
)
def test_malformed_messages_are_named(messages, reason, template):
    with pytest.raises(RequestError, match=reason):
        template.render(messages)


def test_reserved_variables_cannot_be_set(template):
    with pytest.raises(RequestError, match="messages"):
        template.render([USER], chat_template_kwargs={"messages": []})


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"city": "Rome"}', "<parameter=city>\nRome\n</parameter>"),
        ("", "<function=f>\n</function>"),
        ("not json", "<parameter=arguments>\nnot json\n</parameter>"),
        ("[1]", "<parameter=arguments>\n[1]\n</parameter>"),
    ],
)
def test_tool_arguments_may_be_json_text_and_never_break_the_rendering(arguments, shown, template):
    call = {"function": {"name": "f", "arguments": arguments}}
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    before = copy.deepcopy(messages)
    assert shown in template.render(messages)
    assert messages == before


def test_reasoning_is_visible_under_both_names():
    message = {"role": "assistant", "content": "a", "reasoning": "r"}
    source = "{% for m in messages %}{{ m.reasoning_content }}{{ m.reasoning }}{% endfor %}"
    assert render(source, message) == "rr"


def test_tokenizer_config_may_hold_the_template(tmp_path):
    entries = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "with tools"},
    ]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": entries}))
    template = ChatTemplate.from_directory(tmp_path)
    assert template.render([USER]) == "plain"
    assert template.render([USER], tools=[WEATHER]) == "with tools"


def test_a_checkpoint_without_template_has_none(tmp_path):
    assert ChatTemplate.from_directory(tmp_path) is None


def test_a_template_of_unknown_shape_is_refused(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": 3}')
    with pytest.raises(CheckpointError, match=re.escape("is a int")):
        ChatTemplate.from_directory(tmp_path)
