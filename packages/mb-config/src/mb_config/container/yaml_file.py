"""YAML files with the line number of each key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mb_config.container.codec import MAX_DEPTH, join
from mb_config.errors import ConfigFileError, ConfigFileNotFoundError
from mb_schema.yaml_settings import EXPONENT, MOST_VALUES, VALUE_ERRORS, settings_loader

_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"


class _Dumper(yaml.SafeDumper):
    """Safe dumper that quotes text which PyYAML or `mb_schema.yaml_settings` would read as a number, and no other."""


_Dumper.yaml_implicit_resolvers = {
    first_character: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_TAG}timestamp"]
    for first_character, resolvers in yaml.SafeDumper.yaml_implicit_resolvers.items()
}
_Dumper.add_implicit_resolver(f"{_TAG}float", EXPONENT, list("-+0123456789."))


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlFile:
    """Contents of a YAML file, with line numbers."""

    name: str
    """The path of the file, as given."""

    data: Mapping[str, Any]
    """The top mapping; empty for an empty file."""

    lines: Mapping[str, int]
    """Line, counted from 1, of each dotted path."""

    def locate(self, path: str) -> str:
        """Return `run.yaml:12` for a path in the file, or for the longest part of it that is in the file."""
        while path and path not in self.lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return f"{self.name}:{self.lines[path]}" if path else self.name


def read_yaml(path: str | Path) -> YamlFile:
    """Read a YAML mapping from a file.

    Raises:
        ConfigFileNotFoundError: If the file does not exist.
        ConfigFileError: If the file is not valid YAML, not a mapping, or contains a key twice; has the line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigFileNotFoundError("no such file", origin=str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigFileError("is not UTF-8 text", origin=str(path)) from error
    except OSError as error:
        raise ConfigFileError(
            f"cannot be read ({error.strerror}). Name a YAML file that this user can read.", origin=str(path)
        ) from error
    return parse_yaml(text, name=str(path))


def parse_yaml(text: str, *, name: str = "YAML text") -> YamlFile:
    """Parse a YAML mapping from text; see `read_yaml`."""
    try:
        loader = settings_loader(yaml)(text)
        node = loader.get_single_node()
        lines = _lines(node, name=name) if node is not None else {}
        data = loader.construct_document(node) if node is not None else {}
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}"
        raise ConfigFileError(f"invalid YAML: {error.problem}", origin=f"{name}{line}") from error
    except yaml.YAMLError as error:
        raise ConfigFileError(f"invalid YAML: {error}", origin=name) from error
    except ConfigFileError:
        raise
    except VALUE_ERRORS as error:
        raise ConfigFileError(f"invalid YAML: {error}", origin=name) from error
    if data is None:
        data = {}
    if not isinstance(data, Mapping):
        raise ConfigFileError(f"expected a mapping at the top level, not {type(data).__name__}", origin=name)
    return YamlFile(name=name, data=data, lines=lines)


def dump_yaml(data: Mapping[str, Any]) -> str:
    """Return YAML text with the keys in the given order; `parse_yaml` reads the same data from it."""
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def dump_value(value: Any) -> str:
    """Return a value, or a key, as YAML on one line."""
    width = float("inf")
    text: str = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, allow_unicode=True, width=width)
    return text.removesuffix("...\n").strip()


def _lines(root: Any, *, name: str) -> dict[str, int]:
    """Return the line of each path below a node.

    Raises:
        ConfigFileError: An alias contains itself, a mapping has a key twice, or there are too many levels or values.
    """
    line_of: dict[str, int] = {}

    def error(message: str, path: str, node: Any) -> ConfigFileError:
        return ConfigFileError(message, path=path, origin=f"{name}:{node.start_mark.line + 1}")

    def walk(node: Any, path: str, around: tuple[Any, ...]) -> None:
        if any(node is other for other in around):
            raise error("contains itself through an alias", path, node)
        if len(around) > MAX_DEPTH:
            raise error(f"is nested deeper than {MAX_DEPTH} levels", path[:80], node)
        for part in _merged(node):  # keys of the mapping itself follow and take precedence
            walk(part, path, (*around, node))
        seen: dict[str, int] = {}
        for here, position, value in _items(node, path):
            if here in seen:
                raise error(f"given twice, first on line {seen[here]}", here, position)
            line_of[here] = seen[here] = position.start_mark.line + 1
            if len(line_of) > MOST_VALUES:
                raise error(f"aliases make more than {MOST_VALUES} values of this file", "", position)
            walk(value, here, (*around, node))

    walk(root, "", ())
    return line_of


def _items(node: Any, path: str) -> list[tuple[str, Any, Any]]:
    """Return the path of each item of a list or mapping, the node with its line, and its value."""
    if isinstance(node, yaml.SequenceNode):
        return [(f"{path}[{index}]", item, item) for index, item in enumerate(node.value)]
    keys = node.value if isinstance(node, yaml.MappingNode) else ()
    return [(join(path, key.value), key, value) for key, value in keys if key.tag != _MERGE]


def _merged(node: Any) -> list[Any]:
    """Return the mappings that a mapping merges (`<<`) in reverse order, because the first one takes precedence."""
    values = node.value if isinstance(node, yaml.MappingNode) else ()
    found = [value for key, value in values if key.tag == _MERGE]
    return [
        part
        for value in found
        for part in (reversed(value.value) if isinstance(value, yaml.SequenceNode) else [value])
    ]
