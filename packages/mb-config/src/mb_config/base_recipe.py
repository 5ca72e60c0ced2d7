"""The key `base` of a YAML file: the recipe or file to which the file is applied."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from mb_config.errors import WrongTypeError
from mb_config.yaml_file import YamlFile, read_yaml

BASE = "base"
YAML_SUFFIXES = (".yaml", ".yml")
PYTHON_FILE = re.compile(r"[^=]*\.py(:\w+)?")
"""Form of a recipe in a Python file: `FILE.py` or `FILE.py:NAME`."""


def base_of(path: Path | str) -> str | None:
    """Return the recipe or file that a YAML file names in its key `base`; None without one, or without the file.

    A file is relative to the folder of the file that names it.

    Raises:
        ConfigReadError: The file is not valid YAML, or its base is no text.
    """
    if Path(path).suffix not in YAML_SUFFIXES or not Path(path).is_file():
        return None
    file = read_yaml(path)
    base = file.data.get(BASE)
    if base is None:
        return None
    if not isinstance(base, str) or not base:
        raise WrongTypeError(base, "the name of a recipe or of a file", path=BASE, origin=file.locate(BASE))
    named = Path(base)
    is_file = named.suffix in YAML_SUFFIXES or PYTHON_FILE.fullmatch(base)
    return str(Path(path).parent / named) if is_file else base


def without_base(file: YamlFile) -> YamlFile:
    """Return a file without its key `base`."""
    return replace(file, data={key: value for key, value in file.data.items() if key != BASE})
