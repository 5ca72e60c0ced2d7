"""Chat templates of a tokenizer, in the form in which Hugging Face tokenizers carry them. Standard library only."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mb_data.errors import DataPathError, TokenizerError

TEMPLATE_FILE = "chat_template.jinja"
"""Name of the file in a tokenizer's folder that contains its template, instead of `tokenizer_config.json`."""

_DEFAULT, _WITH_TOOLS = "default", "tool_use"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplates:
    """Jinja templates that render conversations, and the special tokens that they may use by name."""

    templates: Mapping[str, str] = field(default_factory=dict)
    """Name -> text of the template. `default` renders conversations, `tool_use` those with tools."""

    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """Name, such as `bos_token`, -> text of the token."""

    def select(self, *, has_tools: bool) -> str | None:
        """Return the template for conversations with or without tools; None if there is none."""
        if has_tools and _WITH_TOOLS in self.templates:
            return self.templates[_WITH_TOOLS]
        return self.templates.get(_DEFAULT)

    def replaced_by(self, template: str) -> "ChatTemplates":
        """Return the same special tokens with a single template."""
        return ChatTemplates(templates={_DEFAULT: template}, special_tokens=self.special_tokens)


def parse_chat_templates(
    settings: Mapping[str, Any], *, source: Path, template: str | None = None
) -> ChatTemplates:
    """Return the templates and special tokens in the values of a `tokenizer_config.json`.

    Args:
        settings: Values of the file.
        source: Path of the file, for messages.
        template: Content of a separate template file, which takes precedence.

    Raises:
        TokenizerError: `chat_template` is neither a string nor a list of named templates.
    """
    templates = settings.get("chat_template") if template is None else template
    if isinstance(templates, list) and all(isinstance(named, dict) for named in templates):
        templates = {named.get("name"): named.get("template") for named in templates}
    elif templates is None or isinstance(templates, str):
        templates = {} if templates is None else {_DEFAULT: templates}
    if not isinstance(templates, dict) or not all(
        isinstance(text, str) for pair in templates.items() for text in pair
    ):
        raise TokenizerError(
            f"{source}: chat_template is a {type(templates).__name__}; it must be the text of a Jinja template, or a "
            "list of objects with name and template. Correct it, or set tokenizer.chat_template_path."
        )
    special_tokens = {
        name: value["content"] if isinstance(value, dict) else value
        for name, value in settings.items()
        if name.endswith("_token")
        and (isinstance(value, str) or (isinstance(value, dict) and "content" in value))
    }
    return ChatTemplates(templates=templates, special_tokens=special_tokens)


def read_chat_template(text: str | None, path: str | None) -> str | None:
    """Return the template that a tokenizer section sets, as text or as a path; None if it sets none.

    Raises:
        DataPathError: The file does not exist.
        TokenizerError: The file is not UTF-8, or is a JSON file without the key `chat_template`.
    """
    if path is None:
        return text
    try:
        content = Path(path).read_text(encoding="utf-8-sig")
    except (FileNotFoundError, IsADirectoryError) as error:
        raise DataPathError(
            f"{path}: no such file; conversations are rendered by its template. Correct tokenizer.chat_template_path."
        ) from error
    except UnicodeDecodeError as error:
        raise TokenizerError(
            f"{path}: is not UTF-8 ({error}); it must be the text of a Jinja template. Convert it."
        ) from error
    if not path.endswith(".json"):
        return content
    try:
        template = json.loads(content)["chat_template"]
    except (ValueError, KeyError, TypeError):
        template = None
    if not isinstance(template, str):
        raise TokenizerError(
            f"{path}: is not a JSON object with the text of a template under chat_template. Correct it, or set "
            "tokenizer.chat_template_path to a .jinja file."
        )
    return template
