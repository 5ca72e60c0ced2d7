"""How a command answers: lines for people, JSON for programs."""

import json
from collections.abc import Sequence


def answer(found: object, as_json: bool, lines: Sequence[str]) -> None:
    """Print the JSON or the lines."""
    print(json.dumps(found, indent=1) if as_json else "\n".join(lines))
