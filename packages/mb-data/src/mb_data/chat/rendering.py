"""Rendering of conversations by Jinja templates. Requires jinja2 (extra `chat`).

Templates come with the files of a tokenizer, so they run in Jinja's sandbox and cannot change their arguments. The
environment is the one for which templates of Hugging Face tokenizers are written.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mb_data.errors import ChatTemplateError

_TODAY = (
    "the template requests the date of today, so that its tokens would differ between runs. Set the date that it "
    'accepts instead, such as dataset.dataset_kwargs.chat_template_kwargs={"date_string": "26 Jul 2024"}'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedChat:
    """Text of a conversation."""

    text: str
    generated: tuple[tuple[int, int], ...]
    """Start and end of each part within `{% generation %}`, in characters."""


@lru_cache(maxsize=16)
def compile_chat_template(template: str) -> "ChatRenderer":
    """Return the compiled form of a template.

    Raises:
        ChatTemplateError: It is not a Jinja template.
    """
    return ChatRenderer(template)


class ChatRenderer:
    """Compiled chat template.

    Args:
        template: Text of the template.

    Raises:
        ChatTemplateError: It is not a Jinja template.
    """

    def __init__(self, template: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationMarks, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _reject_today
        try:
            self._template = environment.from_string(template)
        except TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"tokenizer.chat_template: is not a Jinja template (line {error.lineno}: {error.message}). Correct it."
            ) from error
        self._marks: _GenerationMarks = environment.extensions[_GenerationMarks.identifier]  # type: ignore[assignment]
        self.has_marks = self._marks.count > 0
        """True if the template marks the text of the assistant with `{% generation %}`."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        arguments: Mapping[str, Any],
        add_generation_prompt: bool = False,
    ) -> RenderedChat:
        """Return the text of a conversation.

        Args:
            messages: Messages with role and content.
            tools: JSON schemas of the tools that the assistant may call.
            arguments: Further variables of the template, such as special tokens.
            add_generation_prompt: Add the text that begins the next message of the assistant.

        Raises:
            ChatTemplateError: The template rejects the conversation.
        """
        variables = {
            **arguments,
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            recorded = self._marks.recorded = _Recorded()
            context = self._template.new_context(variables)
            for block in self._template.root_render_func(context):
                recorded.append(block)
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise ChatTemplateError(f"the chat template rejects the conversation: {error}") from error
        return RenderedChat(text="".join(recorded.blocks), generated=tuple(recorded.generated))


class _Recorded:
    """Output of a template so far, and the marked parts of it."""

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self.generated: list[tuple[int, int]] = []
        self.length = 0

    def append(self, block: str) -> None:
        self.blocks.append(block)
        self.length += len(block)


class _GenerationMarks(Extension):
    """Tag `{% generation %}` ... `{% endgeneration %}`, which records the position of the text between."""

    tags = {"generation"}  # noqa: RUF012  # declared so by jinja2

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.count = 0
        self.recorded = _Recorded()
        """Record of the rendering in progress."""

    def parse(self, parser: Parser) -> nodes.Node:
        """Replace the tag with a call of `_record`."""
        self.count += 1
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_record"), [], [], body).set_lineno(line)

    def _record(self, caller: Any) -> str:
        text: str = caller()
        start = self.recorded.length
        self.recorded.generated.append((start, start + len(text)))
        return text


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without the escapes for HTML that Jinja's filter adds."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _reject_today(form: str) -> str:
    raise TemplateError(_TODAY)
