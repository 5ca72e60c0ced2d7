"""Output of a command: text lines, or JSON."""

import json
from collections.abc import Sequence


def answer(found: object, as_json: bool, lines: Sequence[str]) -> None:
    """Print `found` as JSON if `as_json`, otherwise the lines."""
    print(json.dumps(found, indent=1) if as_json else "\n".join(lines))
