"""Keys and passwords are taken out of what is logged, of reports and of what trackers are given."""

import os
from collections.abc import Mapping

from mb_metrics.masking import MASK, is_secret, masked, masked_text

_SHORTEST_SECRET = 6


def hide_secrets(config: Mapping[str, object], *, prefix: str = "") -> dict[str, object]:
    """Return nested settings as one flat mapping with dotted names, values of secrets replaced by `MASK`.

    A secret is what has the name of one ("comet_api_key", "hf_token", "DB_PASS"), what looks like a key of a known
    service, and the password of an address. Values that are not set (None) stay None.
    """
    flat: dict[str, object] = {}
    for name, value in config.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value and not is_secret(str(name), "text"):
            flat |= hide_secrets(value, prefix=f"{path}.")
        else:
            shown = masked(str(name).rpartition(".")[2], value)
            flat[path] = hide_in_text(shown) if isinstance(shown, str) else shown
    return flat


def hide_in_text(text: str) -> str:
    """Return a text without the passwords of addresses, assigned secrets, and the secrets of the environment."""
    text = masked_text(text)
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_SECRET and is_secret(name, value):
            text = text.replace(value, MASK)
    return text
