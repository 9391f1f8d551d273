"""Chat messages to a prompt, by the Jinja template that comes with the checkpoint.

Templates are other people's programs: they run in a sandbox, with the settings and helpers that Hugging Face's tools give them.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from onecat_jax.errors import CheckpointError, RequestError
from onecat_jax.json_files import read_optional_json
from onecat_jax.text.messages import normalise_messages, normalise_tools

# What a template may raise on input that it doesn't expect.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
)
# A template becomes Python source, which has limits of its own.
_COMPILE_ERRORS = (*_TEMPLATE_ERRORS, SyntaxError)
_RESERVED = ("messages", "tools", "documents", "add_generation_prompt")


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}`, which marks assistant text for training, renders its body."""

    tags = {"generation"}  # noqa: RUF012  # the base class declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Replaces the tag by its body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """Compiled templates of one checkpoint."""

    def __init__(
        self, templates: str | Mapping[str, str], *, special_tokens: Mapping[str, str] | None = None
    ) -> None:
        """Args: templates: one source, or sources by name ("default", "tool_use"). special_tokens: seen by the template.

        Raises:
          CheckpointError: a source isn't valid Jinja, or no default is given.
        """
        sources = {"default": templates} if isinstance(templates, str) else dict(templates)
        if "default" not in sources:
            raise CheckpointError(
                f"chat templates {sorted(sources)} have no 'default' among them; name one of them 'default'."
            )
        environment = _environment()
        self._special_tokens = dict(special_tokens or {})
        self._templates = {
            name: _compile(environment, name, source) for name, source in sources.items()
        }

    @classmethod
    def from_directory(
        cls, directory: str | Path, *, special_tokens: Mapping[str, str] | None = None
    ) -> "ChatTemplate | None":
        """Reads chat_template.jinja, or else chat_template of tokenizer_config.json; None if there is neither.

        Raises:
          CheckpointError: a template isn't valid Jinja, or of an unknown shape.
        """
        folder = Path(directory)
        path = folder / "chat_template.jinja"
        if path.is_file():
            return cls(_read(path), special_tokens=special_tokens)
        found = read_optional_json(folder / "tokenizer_config.json").get("chat_template")
        if found is None:
            return None
        return cls(_sources(found), special_tokens=special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of a conversation.

        Args:
          messages: {"role": ..., "content": ...} and what the template reads besides, see `messages`.
          tools: tool descriptions, JSON schema form.
          add_generation_prompt: end with the opening of an assistant turn.
          chat_template_kwargs: further variables, such as enable_thinking.
        Raises:
          RequestError: messages, tools or variables that are malformed or that the template refuses.
        """
        if chat_template_kwargs and not isinstance(chat_template_kwargs, Mapping):
            raise RequestError(
                f"chat_template_kwargs must be a mapping, got {type(chat_template_kwargs).__name__}."
            )
        variables = dict(chat_template_kwargs or {})
        clash = [name for name in _RESERVED if name in variables]
        if clash:
            raise RequestError(f"chat_template_kwargs can't set {', '.join(clash)}: leave it out.")
        template = self._templates["default"]
        if tools and "tool_use" in self._templates:
            template = self._templates["tool_use"]
        context = {
            **self._special_tokens,
            **variables,
            "messages": normalise_messages(messages),
            "tools": normalise_tools(tools),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return template.render(context)
        except _TEMPLATE_ERRORS as error:
            raise RequestError(
                f"the chat template refused the messages: {str(error) or type(error).__name__}"
            ) from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} can't be read ({error}); fetch the file again.") from error


def _compile(environment: jinja2.Environment, name: str, source: str) -> jinja2.Template:
    try:
        return environment.from_string(source)
    except _COMPILE_ERRORS as error:
        raise CheckpointError(
            f"chat template {name!r} isn't valid Jinja ({error}); fetch the file again or correct it."
        ) from error


def _sources(found: Any) -> str | dict[str, str]:
    """The three shapes of tokenizer_config's chat_template: text, {name: text}, [{name, template}]."""
    if isinstance(found, str):
        return found
    if isinstance(found, Mapping):
        return dict(found)
    if isinstance(found, list) and all(isinstance(entry, Mapping) for entry in found):
        return {entry.get("name", ""): entry.get("template", "") for entry in found}
    raise CheckpointError(
        f"chat_template of tokenizer_config.json is a {type(found).__name__}; text or a list of named texts is needed."
    )
