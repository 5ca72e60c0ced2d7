"""Comparison with recorded behaviour: `MB_RECORD_GOLDENS=1 pytest tests/goldens` records it again."""

import json
import os
from pathlib import Path
from typing import Any

RECORD = "MB_RECORD_GOLDENS"
"""Environment variable: write the files instead of comparing with them. Read their diff before a commit."""
FOLDER = Path(__file__).parent / "goldens"


def differences(name: str, found: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return key -> (recorded, found) of what differs from a recorded file, None where one side lacks it."""
    file = FOLDER / f"{name}.json"
    found = json.loads(json.dumps(found))
    if os.environ.get(RECORD) == "1":
        lines = (f"{json.dumps(key)}: {json.dumps(found[key])}" for key in sorted(found))
        file.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    recorded = json.loads(file.read_text())
    keys = sorted({*recorded, *found})
    return {key: (recorded.get(key), found.get(key)) for key in keys if recorded.get(key) != found.get(key)}
