"""Parser for overrides in Hydra's grammar. Only this file imports hydra-core at its top, which takes 0.4 s."""

from __future__ import annotations

import re
from typing import Any, Literal

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from mb_config.cli.message_text import truncate, truncate_repr
from mb_config.errors import OverrideError
from mb_config.overrides.override_text import Override
from mb_config.overrides.shell_line import quoted_override
from mb_schema.secrets import masked_text

_PATH = re.compile(r"[+~]{0,2}\w+(\.\w+)*")


class NonAsciiEscapes:
    """Encoding of non-ASCII letters, which Hydra's grammar accepts in quoted strings only.

    Each letter is replaced by a sequence of ASCII letters and digits that does not occur in the text otherwise.
    Unprintable characters are not encoded; Hydra rejects them outside of quotes.
    """

    def __init__(self, text: str) -> None:
        self._mark = "zu"
        while self._mark in text:
            self._mark += "u"
        path, sign, value = text.partition("=")
        self.encoded = path + sign + "".join(map(self._encode, value))

    def _encode(self, letter: str) -> str:
        return letter if letter.isascii() or not letter.isprintable() else f"{self._mark}{ord(letter)}z"

    def decode(self, text: str) -> str:
        """Return a text with its original letters."""
        return re.sub(rf"{self._mark}(\d+)z", lambda found: chr(int(found[1])), text)

    def decode_all(self, value: Any) -> Any:
        """Return a value with the original letters in all of its texts."""
        if isinstance(value, str):
            return self.decode(value)
        if isinstance(value, list):
            return [self.decode_all(item) for item in value]
        if isinstance(value, dict):
            return {self.decode_all(key): self.decode_all(item) for key, item in value.items()}
        return value


def parse_override(text: str) -> Override:
    """Parse one override.

    Raises:
        OverrideError: If the text is not an override, is a sweep over several values, or names a Hydra group.
    """
    letters = NonAsciiEscapes(text)
    try:
        parsed = OverridesParser.create().parse_override(letters.encoded)
    except (
        HydraException,
        ValueError,
    ) as error:  # Python rejects integers of thousands of digits with the latter
        shown = masked_text(text)
        reason = (
            letters.decode(str(error)).splitlines()[0]
            if shown == text
            else "its value is not valid in Hydra's grammar"
        )
        raise OverrideError(
            f"cannot parse the override {truncate_repr(shown)}: {truncate(reason)}. Write {_working(text, shown)}"
        ) from (error if shown == text else None)
    if parsed.is_sweep_override():
        shown = masked_text(text)
        advice = f" As one string: {_working(text, shown)}" if shown == text else ""
        raise OverrideError(
            f"{truncate_repr(shown)} has several values, but a run takes one.{advice}",
            path=parsed.key_or_group,
        )
    if parsed.package is not None or "/" in parsed.key_or_group:
        raise OverrideError(
            f"{truncate_repr(masked_text(text))} names a Hydra group; write section.field=value"
        )
    if not all(parsed.key_or_group.split(".")):
        raise OverrideError(f"{truncate_repr(masked_text(text))} names no field; write section.field=value")
    name = parsed.type.name
    kinds: dict[str, Literal["change", "add", "force", "delete"]]
    kinds = {"CHANGE": "change", "ADD": "add", "FORCE_ADD": "force", "DEL": "delete"}
    return Override(
        kind=kinds[name],
        keys=tuple(parsed.key_or_group.split(".")),
        value=letters.decode_all(parsed.value()),
        text=text.partition("=")[2].strip(),
        has_value="=" in text,
    )


def _working(text: str, shown: str) -> str:
    """Return an override that sets the field to the given text, or a template if that is not the likely intent."""
    path, sign, value = text.partition("=")
    plain = (
        _PATH.fullmatch(path) is not None and bool(sign) and not value.startswith(("'", '"', "[", "{", "("))
    )
    return truncate(quoted_override(path, value)) if plain and shown == text else "section.field=value"
