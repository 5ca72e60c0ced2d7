"""Values as text in the grammar of Hydra's overrides. Standard library only."""

import re
from collections.abc import Mapping

_BARE = re.compile(r"(?!(?:null|true|false|inf|nan)\Z)[A-Za-z_/][\w./-]*", re.ASCII | re.IGNORECASE)


def to_hydra_text(value: object) -> str:
    """Return a value as the right side of an override; a text without quotes where Hydra reads it as a text."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{to_hydra_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(to_hydra_text, value)) + "]"
    text = str(value)
    return text if _BARE.fullmatch(text) else hydra_quoted(text)


def hydra_quoted(text: str, *, quote: str = "'") -> str:
    """Return a text within quotes, which Hydra reads back as it is."""
    # Hydra's grammar reads a backslash as an escape only in front of a quote: one elsewhere stays single
    inner = re.sub(rf"(\\*)({quote}|\Z)", lambda match: match[1] * 2 + (match[2] and f"\\{quote}"), text)
    return f"{quote}{inner}{quote}"
