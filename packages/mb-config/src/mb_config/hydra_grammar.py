"""Overrides as Hydra writes them. The one file that imports hydra-core, which takes 0.4 s."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from mb_config.errors import OverrideError
from mb_config.masking import masked_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One override."""

    kind: Literal["change", "add", "force", "delete"]
    """`a=b`, `+a=b`, `++a=b`, `~a`."""

    keys: tuple[str, ...]
    """Parts of the dotted path."""

    value: Any
    """The value as numbers, text, lists and mappings; None for null."""

    text: str
    """The value as it was written."""

    has_value: bool
    """False for `~a`."""

    @property
    def path(self) -> str:
        """The dotted path."""
        return ".".join(self.keys)


def parse_override(text: str) -> Override:
    """Parse one override.

    Raises:
        OverrideError: no override, a sweep over several values, or a Hydra group.
    """
    try:
        parsed = OverridesParser.create().parse_override(text)
    except (
        HydraException,
        ValueError,
    ) as error:  # Python refuses integers of thousands of digits with the latter
        shown = masked_text(text)
        reason = str(error).splitlines()[0] if shown == text else "its value is no value in Hydra's grammar"
        raise OverrideError(f"cannot read the override {shown!r}: {reason}; write section.field=value") from (
            error if shown == text else None
        )
    if parsed.is_sweep_override():
        text = masked_text(text)
        raise OverrideError(f"{text!r} gives several values; one run takes one", path=parsed.key_or_group)
    if parsed.package is not None or "/" in parsed.key_or_group:
        raise OverrideError(f"{text!r} names a Hydra group; write section.field=value")
    name = parsed.type.name
    kinds: dict[str, Literal["change", "add", "force", "delete"]]
    kinds = {"CHANGE": "change", "ADD": "add", "FORCE_ADD": "force", "DEL": "delete"}
    return Override(
        kind=kinds[name],
        keys=tuple(parsed.key_or_group.split(".")),
        value=parsed.value(),
        text=text.partition("=")[2].strip(),
        has_value="=" in text,
    )
