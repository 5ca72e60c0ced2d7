"""Removal of keys and passwords from logs, reports and the settings passed to trackers."""

import os
import re
from collections.abc import Mapping

from mb_schema.secrets import MASK, is_secret, masked, masked_text

_SHORTEST_SECRET = 6
_NAME = re.compile(r"(?<![\w.-])([\w.-]+)['\"]?\s*:(?=\s|$)")
"""Name of a setting in YAML; anchored at its start, so that a text is searched in linear time."""


def hide_secrets(config: Mapping[str, object], *, prefix: str = "") -> dict[str, object]:
    """Return nested settings as a flat mapping with dotted names and secrets replaced by `MASK`.

    Secrets are values with the name of a secret ("comet_api_key", "hf_token", "DB_PASS"), values in the format of a
    key of a known service, and passwords in addresses. None remains None.
    """
    flat: dict[str, object] = {}
    for name, value in config.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value and not is_secret(str(name), "text"):
            flat |= hide_secrets(value, prefix=f"{path}.")
        else:
            shown = masked(str(name).rpartition(".")[2], value)
            flat[path] = hide_in_text(shown) if isinstance(shown, str) else shown
    return flat


def hide_in_text(text: str) -> str:
    """Mask passwords in addresses, assigned secrets and secrets of the environment in a text."""
    text = masked_text(text)
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_SECRET and is_secret(name, value):
            text = text.replace(value, MASK)
    return text


def hide_in_settings(text: str) -> str:
    """Mask secrets in the text of a YAML file, to the end of the line and in the indented lines below it."""
    lines: list[str] = []
    hidden: int | None = None  # indentation of a secret that may have more lines
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if hidden is not None and (indent > hidden or not line.strip()):
            continue
        hidden = None
        for number, match in enumerate(_NAME.finditer(line)):
            # the value of the first name is the rest of the line; others, in a mapping, are secrets by name only
            has_value = number == 0 or is_secret(match[1], "text")
            value = line[match.end() :].strip() if has_value else ""
            if value != "null" and is_secret(match[1], value.strip("'\"") or "text"):
                line, hidden = f"{line[: match.end()]} {masked(match[1], value or 'text')}", indent
                break
        lines.append(hide_in_text(line))
    return "\n".join(lines)
