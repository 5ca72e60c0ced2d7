"""Keys and passwords are taken out of what is logged and of what trackers are given."""

import os
import re
from collections.abc import Mapping

HIDDEN = "***"

_SECRET_NAME = re.compile(
    r"(^|[_\-.])(api[_-]?key|access[_-]?key|private[_-]?key|password|passwd|secret|secrets|credentials?"
    r"|(api|auth|access|bearer|hf|hub|refresh|session|tracking)[_-]?token)$|^(token|key)$",
    re.IGNORECASE,
)
_SECRET_ENVIRONMENT = (
    "WANDB_API_KEY",
    "COMET_API_KEY",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "HF_TOKEN",
)
_IN_ADDRESS = re.compile(r"//[^/@\s]+@")
_SHORTEST_SECRET = 6


def hide_secrets(config: Mapping[str, object], *, prefix: str = "") -> dict[str, object]:
    """Return nested settings as one flat mapping with dotted names, values of secrets replaced by "***".

    A secret is what is named like one ("comet_api_key", "hf_token", "password"), or stands before the "@" of an
    address. Values that are not set (None) stay None.
    """
    flat: dict[str, object] = {}
    for name, value in config.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            flat |= hide_secrets(value, prefix=f"{path}.")
        elif value is not None and _SECRET_NAME.search(str(name)):
            flat[path] = HIDDEN
        else:
            flat[path] = hide_in_text(value) if isinstance(value, str) else value
    return flat


def hide_in_text(text: str) -> str:
    """Return a text without the user and password of addresses and without the keys that the environment holds."""
    text = _IN_ADDRESS.sub(f"//{HIDDEN}@", text)
    for name in _SECRET_ENVIRONMENT:
        value = os.environ.get(name, "")
        if len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, HIDDEN)
    return text
