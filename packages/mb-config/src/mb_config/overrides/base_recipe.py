"""The key `base` of a YAML file: the recipe or file to which the file is applied."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from mb_config.cli.message_text import truncate_repr
from mb_config.container.yaml_file import YamlFile, read_yaml
from mb_config.errors import ConfigFileNotFoundError, ConfigReadError, ConsentError, WrongTypeError

BASE = "base"
YAML_SUFFIXES = (".yaml", ".yml")
PYTHON_FILE = re.compile(r"[^=]*\.py(:\w+)?")
"""Form of a recipe in a Python file: `FILE.py` or `FILE.py:NAME`."""


def base_of(path: Path | str) -> str | None:
    """Return the recipe or file that a YAML file names in its key `base`; None without one, or without the file.

    A file is relative to the folder of the file that names it.

    Raises:
        ConfigReadError: The file is not valid YAML, or its base is not text, does not exist or is a file of Python.
    """
    if Path(path).suffix not in YAML_SUFFIXES or not Path(path).is_file():
        return None
    file = read_yaml(path)
    base = file.data.get(BASE)
    if base is None:
        return None
    if not isinstance(base, str) or not base:
        raise WrongTypeError(base, "the name of a recipe or of a file", path=BASE, origin=file.locate(BASE))
    if PYTHON_FILE.fullmatch(base):
        raise ConsentError(
            f"{truncate_repr(base)} is not allowed in a file, because a file runs no code. Name it on the command "
            "line, before the overrides, and this file with --config.",
            path=BASE,
            origin=file.locate(BASE),
        )
    if Path(base).suffix not in YAML_SUFFIXES:
        return base
    named = Path(path).parent / base
    if not named.exists():
        raise ConfigFileNotFoundError(
            f"{named}: no such file. The file is applied to it: correct the path, which is relative to the folder of "
            "this file.",
            path=BASE,
            origin=file.locate(BASE),
        )
    return str(named)


def reject_base_cycle(path: Path | str) -> None:
    """Reject a YAML file whose bases lead back to one of them.

    Raises:
        ConfigReadError: They do; or see `base_of`.
    """
    seen: dict[Path, str] = {}
    current: str | None = str(path)
    while current is not None:
        file = Path(current).resolve()
        if file in seen:
            raise ConfigReadError(
                f"{' -> '.join([*seen.values(), current])}: a file is its own base. Name a recipe in one of them.",
                path=BASE,
            )
        seen[file] = current
        current = base_of(current)


def without_base(file: YamlFile) -> YamlFile:
    """Return a file without its key `base`."""
    return replace(file, data={key: value for key, value in file.data.items() if key != BASE})
