"""Detection of overrides that are mistyped in a shell, with the corrected command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from mb_config.cli.message_text import truncate
from mb_config.errors import OverrideError
from mb_schema.hydra_text import hydra_quoted
from mb_schema.secrets import masked_text

_DASHED = re.compile(r"--?(?P<path>[A-Za-z_]\w*(\.\w+)+)(?P<value>=.*)?", re.DOTALL)


def reject_spaced(arguments: Sequence[str]) -> None:
    """Reject overrides with spaces around `=`, which a shell splits into several arguments.

    Raises:
        OverrideError: If an override is split; contains the corrected command line.
    """
    joined = _joined(arguments)
    if joined != list(arguments):
        typed, line = " ".join(arguments), shlex.join(joined)
        raise OverrideError(
            f"{truncate(masked_text(typed))!r} has spaces around '=', at which the shell splits it. "
            f"Write {truncate(masked_text(line))}"
        )


def without_dashes(arguments: Sequence[str]) -> str | None:
    """Return the corrected command line if overrides are written as options (`--optimizer.lr=1`), otherwise None."""
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
    """Return the override that sets a field to a text, quoted for a shell."""
    if value.startswith("~/"):
        return f'{path}="$HOME{value[1:]}"'
    return shlex.quote(f"{path}=" + hydra_quoted(value, quote='"'))


def _joined(arguments: Sequence[str]) -> list[str]:
    """Join the arguments that a shell split at the spaces around `=` or `:`."""
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
