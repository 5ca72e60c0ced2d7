"""YAML files that remember on which line each key stands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mb_config.errors import ConfigFileError, ConfigFileNotFoundError


class _Loader(yaml.SafeLoader):
    """YAML's plain values, and `1e-3` is a number (in YAML 1.1 it is text)."""


_Loader.yaml_implicit_resolvers = {
    first: list(resolvers) for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlFile:
    """What a file says, and where."""

    name: str
    """The path as it was given."""

    data: Mapping[str, Any]
    """The top mapping; empty for an empty file."""

    lines: Mapping[str, int]
    """Line, counted from 1, of each dotted path."""

    def locate(self, path: str) -> str:
        """`run.yaml:12` for a path in the file, or for the nearest part of it that is there."""
        while path and path not in self.lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return f"{self.name}:{self.lines[path]}" if path else self.name


def read_yaml(path: str | Path) -> YamlFile:
    """Read one YAML mapping.

    Raises:
        ConfigFileNotFoundError: no such file.
        ConfigFileError: no YAML, no mapping, or a key given twice; with the line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigFileNotFoundError("no such file", origin=str(path)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigFileError(str(error), origin=str(path)) from error
    return parse_yaml(text, name=str(path))


def parse_yaml(text: str, *, name: str = "YAML text") -> YamlFile:
    """The same for text."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        lines = dict(_lines(node, "", name)) if node is not None else {}
        data = loader.construct_document(node) if node is not None else {}
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}"
        raise ConfigFileError(f"no valid YAML: {error.problem}", origin=f"{name}{line}") from error
    except yaml.YAMLError as error:
        raise ConfigFileError(f"no valid YAML: {error}", origin=name) from error
    except ConfigFileError:
        raise
    except ValueError as error:  # a value in the form of a date that does not exist
        raise ConfigFileError(f"no valid YAML: {error}", origin=name) from error
    if data is None:
        data = {}
    if not isinstance(data, Mapping):
        raise ConfigFileError(f"expected keys and values at the top, not {type(data).__name__}", origin=name)
    return YamlFile(name=name, data=data, lines=lines)


def dump_yaml(data: Mapping[str, Any]) -> str:
    """YAML text, keys in the order given."""
    return yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=110)


def _lines(node: Any, path: str, name: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield f"{path}[{index}]", item.start_mark.line + 1
            yield from _lines(item, f"{path}[{index}]", name)
    if not isinstance(node, yaml.MappingNode):
        return
    seen: dict[str, int] = {}
    for key, value in node.value:
        here, line = f"{path}.{key.value}" if path else str(key.value), key.start_mark.line + 1
        if here in seen:
            raise ConfigFileError(
                f"given twice, first on line {seen[here]}", path=here, origin=f"{name}:{line}"
            )
        seen[here] = line
        yield here, line
        yield from _lines(value, here, name)
