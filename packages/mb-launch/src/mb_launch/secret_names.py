"""Secrets in environment variables and arguments, recognized by name or form, so that no script contains them."""

import re

from mb_schema.secrets import is_secret

_SETTING = re.compile(r"[-+~]*(?P<name>[A-Za-z_][\w.@/-]*)=(?P<value>.*)", re.DOTALL)
_NO_SECRETS = frozenset({"", "null", "none", "true", "false"})
_DIGITS = 40


def is_secret_variable(name: str, value: str = "text") -> bool:
    """Return whether a variable or option of this name and value is a secret, as `mb_schema.secrets.is_secret` decides.

    Values are text here: digits count as a number, and the words of YAML for no value are none.
    """
    if value.lower() in _NO_SECRETS:
        return False
    number = value.isdecimal() and len(value) < _DIGITS
    return is_secret(re.split(r"[./@]", name)[-1], int(value) if number else value) or _has_form(value)


def secret_argument(arguments: list[str]) -> str | None:
    """Return the name of the first argument with a secret value: `name=value`, `--name=value` or `--name value`."""
    for before, argument in zip(["", *arguments], arguments, strict=False):
        setting = _SETTING.fullmatch(argument)
        if setting is not None and is_secret_variable(setting["name"], setting["value"]):
            return setting["name"]
        if before.startswith("--") and "=" not in before and is_secret_variable(before, argument):
            return before
        if _has_form(argument):
            return argument[:4] + "..."
    return None


def _has_form(text: str) -> bool:
    """Return whether a word of a text has the form of a secret."""
    return any(is_secret("", word) for word in re.split(r"[\s=,'\"]+", text))
