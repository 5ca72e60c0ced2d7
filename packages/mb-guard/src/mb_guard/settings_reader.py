"""Settings of a run from a Megatron-LM command line or script, or from a YAML configuration, without running it."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from mb_guard.errors import UnreadableSettingsError
from mb_guard.fault import Settings
from mb_schema.yaml_settings import load_settings

FIELD_OF_FLAG = {"num_experts": "num_moe_experts", "swiglu": "gated_linear_unit"}
"""Megatron's field names where they differ from the flags of Megatron-LM."""


def read_settings(arguments: Sequence[str]) -> Settings:
    """Return the settings of flags, of a shell script that contains them, or of a YAML file.

    Raises:
        UnreadableSettingsError: there is no such file, or it is not YAML or a shell script.
    """
    if len(arguments) == 1 and not arguments[0].startswith("-"):
        path = Path(arguments[0])
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UnreadableSettingsError(
                f"{path}: cannot be read ({error}). Name a script, a YAML file or flags."
            ) from None
        if path.suffix in {".yaml", ".yml"}:
            return Settings(dict(_leaves(_load_yaml(path, text))))
        return Settings(dict(_flags(_words_of_script(path, text))))
    return Settings(dict(_flags(list(arguments))))


def _load_yaml(path: Path, text: str) -> Any:
    try:
        yaml = import_module("yaml")
    except ModuleNotFoundError:
        raise UnreadableSettingsError(
            f'{path}: needs pyyaml, which is not installed. Install it: pip install "mb-guard[cli]"'
        ) from None
    try:
        return load_settings(text, yaml)
    except yaml.YAMLError as error:
        raise UnreadableSettingsError(
            f"{path}: not YAML ({str(error).splitlines()[0]}). Correct the file."
        ) from None


def _leaves(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield each field of all sections under its own name; names of sections do not count."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            if isinstance(each, Mapping):
                yield from _leaves(each)
            else:
                yield str(name), each


def _words_of_script(path: Path, text: str) -> list[str]:
    """Return the words of a shell script, with the values of variables that it assigns."""
    joined = re.sub(r"\\\n", " ", text)
    without_arrays = re.sub(r"=\(", "= ", joined).replace(")", " ")
    try:
        words = shlex.split(without_arrays, comments=True)
    except ValueError as error:
        raise UnreadableSettingsError(f"{path}: not a shell script ({error}). Correct the quotes.") from None
    variables = {
        name: value
        for word in words
        for name, sign, value in [word.partition("=")]
        if sign and name.isidentifier()
    }
    expanded = [_expand(word, variables) for word in words]
    # a quoted group of flags is one word: ARGS="--a 1 --b"
    return [part for word in expanded for part in _parts(word)]


def _parts(word: str) -> list[str]:
    if " " not in word:
        return [word]
    return word.partition("=")[2].split() if re.match(r"\w+=", word) else word.split()


def _expand(word: str, variables: Mapping[str, str], depth: int = 0) -> str:
    """Return a word with the values of its variables; those that the script does not assign remain."""

    def value(match: re.Match[str]) -> str:
        name, default = match[1] or match[3], match[2]
        text = variables.get(name, match[0] if default is None else default)
        return default if text == match[0] and default is not None else text

    expanded = re.sub(r"\$\{(\w+)(?::-([^}]*))?\}|\$(\w+)", value, word)
    return expanded if expanded == word or depth > 8 else _expand(expanded, variables, depth + 1)


def _flags(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for position, word in enumerate(words):
        if not re.fullmatch(r"--[A-Za-z][\w-]*(=.*)?", word):
            continue
        flag, sign, given = word[2:].partition("=")
        following = words[position + 1] if position + 1 < len(words) else "--"
        value: Any = True
        if sign:
            value = _value(given)
        elif not following.startswith("--"):
            value = _value(following)
        name = flag.replace("-", "_")
        yield FIELD_OF_FLAG.get(name, name), value
        for prefix in ("no_", "disable_"):
            if name.startswith(prefix):
                yield name.removeprefix(prefix), False


def _value(text: str) -> Any:
    """Return a number, a truth value or a text; None for a variable without a value."""
    if "$" in text:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)
