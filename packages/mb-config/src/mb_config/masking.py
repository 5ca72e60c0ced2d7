"""Values that must never be printed or saved in clear."""

from __future__ import annotations

import re

MASK = "<masked>"
_SECRET = re.compile(
    r"(^|_)(api_?key|access_key|secret|secret_key|password|passwd|token|key)$", re.IGNORECASE
)


def is_secret(name: str, value: object) -> bool:
    """True for non-empty text under a name such as `comet_api_key`, `hf_token` or `WANDB_API_KEY`."""
    return isinstance(value, str) and bool(value) and _SECRET.search(name) is not None
