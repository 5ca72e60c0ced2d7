"""Masking of values that must not be printed or saved in clear text.

A secret is recognized by its name (`comet_api_key`, `hf_token`, `WANDB_API_KEY`, `db_password`) or by its form (a token
of a known service, a password inside a URL). It is replaced by `MASK` in texts and files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "<masked>"
_NAMES = r"(api|access|private|secret)_?key|secret|credentials?|authorization|password|passwd|passphrase"
_NUMBER = re.compile(rf"(^|[_.-])({_NAMES})$", re.IGNORECASE)
"""Names under which text and numbers are secrets, by their last word."""
_SECRET_NAME = re.compile(rf"(^|[_.-])({_NAMES}|auth|token|pat|key)$", re.IGNORECASE)
_PUBLIC_NAME = re.compile(
    r"(^|[_.-])((bos|cls|eod|eos|image|mask|pad|sep|stop|unk)_token"
    r"|(answer|chat|context|image|input|json|label|messages|output|prompt|query|question|sort|system|text|tools)_key)$",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+|[A-Z]*PASSWORD")
"""Names of environment variables of at least two words."""
_WORDS = {"AUTH", "COOKIE", "CREDENTIAL", "CREDENTIALS", "KEY", "PASS", "PASSWD", "PASSPHRASE", "PASSWORD"}
_WORDS |= {"PAT", "PWD", "SECRET", "TOKEN", "WEBHOOK"}
_LOCATION = frozenset({"DIR", "FILE", "FOLDER", "PATH"})
"""Last words of variables that contain the location of a secret, not the secret."""
_LOOKS = re.compile(
    r"^(hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
    r"|wandb_v\d_\w{16,}|local-[0-9a-f]{40}|nvapi-[\w-]{16,}|A(KIA|SIA)[A-Z0-9]{12,}|xox[abprs]-[\w-]{10,}"
    r"|Bearer\s+\S+|eyJ[\w-]+\.eyJ[\w-]+\.[\w-]+|-----BEGIN [A-Z ]*PRIVATE KEY-----.*)$",
    re.DOTALL,
)
_ADDRESS = re.compile(r"(?P<user>(?<=[A-Za-z0-9+.-])://[^/@\s:]*):[^/@\s]+@")
"""Anchored at "://"; the next pattern at the start of a name. Each text is searched in linear time."""
_ASSIGNED = re.compile(r"(?<![\w.-])(?P<name>[\w.-]+)(?P<sign>\s*=\s*)(?P<value>'[^']*'|\"[^\"]*\"|[^\s,}]+)")


def is_secret_name(name: str) -> bool:
    """Return True for a name, or a dotted path, under which text is a secret: `hf_token`, but not `eos_token`."""
    return _SECRET_NAME.search(name) is not None and _PUBLIC_NAME.search(name) is None


def is_secret(name: str, value: object) -> bool:
    """Return True for a value under the name of a secret, and for text in the form of a secret under any name.

    A number is a secret under `password` but not under `token`. Names of special tokens (`eos_token`) are not secrets,
    nor are True, False, None and empty text. In the name of an environment variable one word is enough (`DB_PASS_2`).
    """
    if _is_secret_variable(name) and isinstance(value, str | int | float) and not isinstance(value, bool):
        return value != ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _NUMBER.search(name) is not None
    if not isinstance(value, str) or not value:
        return False
    if is_secret_name(name):
        return True
    return _LOOKS.match(value) is not None or _ADDRESS.search(value) is not None


def _is_secret_variable(name: str) -> bool:
    if _VARIABLE.fullmatch(name) is None:
        return False
    words = name.split("_")
    return words[-1] not in _LOCATION and (words[-1].endswith("PASSWORD") or not _WORDS.isdisjoint(words))


def is_masked(value: object) -> bool:
    """Return True for text that contains a masked secret."""
    return isinstance(value, str) and MASK in value


def leaf(path: str) -> str:
    """Return the last name of a dotted path, without an index."""
    return path.rpartition(".")[2].partition("[")[0]


def masked(name: str, value: Any) -> Any:
    """Return the value with secrets masked. Mappings and lists are searched."""
    if is_secret(name, value):
        return _masked_value(value)
    if isinstance(value, Mapping):
        whole = is_secret(name, "text")
        return {key: masked(name if whole else str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = [masked(name, item) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    return value


def masked_argument(argument: str) -> str:
    """Return an argument of a command. The value of a KEY=VALUE argument is masked if it is a secret."""
    path, sign, value = argument.partition("=")
    return f"{path}{sign}{masked(leaf(path), value)}" if sign else argument


def masked_text(text: str) -> str:
    """Mask the values assigned to names of secrets in free text, such as an override that cannot be parsed."""

    def hide(match: re.Match[str]) -> str:
        name, value = match["name"].rpartition(".")[2], match["value"].strip("'\"")
        done = value.startswith(MASK) or not is_secret(name, value)
        return match[0] if done else f"{match['name']}{match['sign']}{MASK}"

    return _ADDRESS.sub(rf"\g<user>:{MASK}@", _ASSIGNED.sub(hide, text))


def _masked_value(value: object) -> str:
    """Return `MASK`; in a URL only the password is masked."""
    if isinstance(value, str) and _LOOKS.match(value) is None and _ADDRESS.search(value):
        return _ADDRESS.sub(rf"\g<user>:{MASK}@", value)
    return MASK
