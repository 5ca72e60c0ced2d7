"""Slips in how overrides are typed in a shell, with the line that works."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from mb_config.errors import OverrideError
from mb_config.masking import masked_text
from mb_config.message_text import truncate

_DASHED = re.compile(r"--?(?P<path>[A-Za-z_]\w*(\.\w+)+)(?P<value>=.*)?", re.DOTALL)


def reject_spaced(arguments: Sequence[str]) -> None:
    """Reject overrides with spaces around their sign, which a shell splits into several words.

    Raises:
        OverrideError: some are split; names the line that works.
    """
    joined = _joined(arguments)
    if joined != list(arguments):
        typed, line = " ".join(arguments), shlex.join(joined)
        raise OverrideError(
            f"{truncate(masked_text(typed))!r} has spaces around the sign, and the shell makes several words of it. "
            f"Write {truncate(masked_text(line))}"
        )


def without_dashes(arguments: Sequence[str]) -> str | None:
    """Return the line that works where overrides are written as options (`--optimizer.lr=1`); None where none is."""
    line: list[str] = []
    for number, word in enumerate(arguments):
        match = _DASHED.fullmatch(word)
        before = _DASHED.fullmatch(arguments[number - 1]) if number else None
        if match is not None:
            line.append(match["path"] + (match["value"] or "="))
        elif before is not None and before["value"] is None:
            line[-1] += word
        else:
            line.append(word)
    return None if line == list(arguments) else truncate(masked_text(shlex.join(line)), 1_000)


def quoted_override(path: str, value: str) -> str:
    """Return the override that sets a field to this text, quoted for a shell."""
    if value.startswith("~/"):
        return f'{path}="$HOME{value[1:]}"'
    text = value.replace("\\", "\\\\").replace('"', '\\"')
    return shlex.quote(f'{path}="{text}"')


def _joined(arguments: Sequence[str]) -> list[str]:
    """Put together what a shell split at the spaces around a sign."""
    joined: list[str] = []
    for word in arguments:
        before = joined[-1] if joined else ""
        opened = before.endswith("=") and before != "=" and "=" not in word and word[:1] not in ("~", "+")
        colon = re.fullmatch(r"[\w.]+\.\w+:", before) is not None
        if (joined and (word.startswith("=") and "=" not in before)) or opened:
            joined[-1] += word
        elif colon:
            joined[-1] = f"{before[:-1]}={word}"
        else:
            joined.append(word)
    return joined
