"""Secrets in environment variables and arguments, recognized by name or form, so that no script contains them."""

import re

_LAST_WORDS = {"auth", "credential", "credentials", "key", "passwd", "password", "pat", "secret", "token"}
_SPECIAL_TOKENS = {"bos", "cls", "eod", "eos", "mask", "pad", "sep", "unk"}
_FORMS = re.compile(r"(hf_|sk-|ghp_|github_pat_|glpat-)\w{16,}|AKIA[0-9A-Z]{16}|eyJ[\w-]+\.eyJ[\w-]+\.")
_SETTING = re.compile(r"[-+~]*(?P<name>[A-Za-z_][\w.@/-]*)=(?P<value>.*)", re.DOTALL)


def is_secret_variable(name: str, value: str = "text") -> bool:
    """Return whether a variable or option of this name and value looks like a secret.

    The last word of the name decides (`WANDB_API_KEY`, `logger.comet_api_key`), or a form of the value that services
    give their keys. Names of special tokens (`eos_token`) and numbers are not secret.
    """
    if _FORMS.search(value):
        return True
    words = [word.lower() for word in re.split(r"[._-]+", name) if word]
    if not words or words[-1] not in _LAST_WORDS or value.lower() in ("", "null", "none", "true", "false"):
        return False
    return not (value.isdecimal() or {*words} & _SPECIAL_TOKENS)


def secret_argument(arguments: list[str]) -> str | None:
    """Return the name of the first argument with a secret value: `name=value`, `--name=value` or `--name value`."""
    for before, argument in zip(["", *arguments], arguments, strict=False):
        setting = _SETTING.fullmatch(argument)
        if setting is not None and is_secret_variable(setting["name"], setting["value"]):
            return setting["name"]
        if before.startswith("--") and "=" not in before and is_secret_variable(before, argument):
            return before
        if _FORMS.search(argument):
            return argument[:4] + "..."
    return None
