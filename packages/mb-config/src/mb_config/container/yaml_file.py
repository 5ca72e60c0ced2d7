"""YAML files with the line number of each key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mb_config.container.codec import MAX_DEPTH
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
        lines = _Lines(name=name).read(node) if node is not None else {}
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


@dataclass(kw_only=True)
class _Lines:
    """Line numbers of the paths in a parsed file. Rejects aliases that contain themselves."""

    name: str
    line_of: dict[str, int] = field(default_factory=dict)
    ancestors: list[Any] = field(default_factory=list)
    """Nodes around the current one, outermost first."""

    def read(self, node: Any) -> dict[str, int]:
        """Return the line of each path below a node."""
        self._walk(node, "")
        return self.line_of

    def _walk(self, node: Any, path: str) -> None:
        """Note the lines of everything below a node."""
        if any(node is other for other in self.ancestors):
            raise self._error("contains itself through an alias", path, node)
        if len(self.ancestors) > MAX_DEPTH:
            raise self._error(f"is nested deeper than {MAX_DEPTH} levels", path[:80], node)
        self.ancestors.append(node)
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self._note(f"{path}[{index}]", item)
                self._walk(item, f"{path}[{index}]")
        elif isinstance(node, yaml.MappingNode):
            self._keys(node, path)
        self.ancestors.pop()

    def _keys(self, node: Any, path: str) -> None:
        """Note the lines of the keys of a mapping; a key of its own overrides that of a merged mapping (`<<`)."""
        seen: dict[str, int] = {}
        merged = [value for key, value in node.value if key.tag == _MERGE]
        for item in (item for value in merged for item in _parts(value)):
            self._walk(item, path)  # keys of the mapping itself are read later and take precedence
        for key, value in node.value:
            if key.tag == _MERGE:
                continue
            here = f"{path}.{key.value}" if path else str(key.value)
            if here in seen:
                raise self._error(f"given twice, first on line {seen[here]}", here, key)
            seen[here] = key.start_mark.line + 1
            self._note(here, key)
            self._walk(value, here)

    def _note(self, path: str, node: Any) -> None:
        self.line_of[path] = node.start_mark.line + 1
        if len(self.line_of) > MOST_VALUES:
            raise self._error(f"aliases make more than {MOST_VALUES} values of this file", "", node)

    def _error(self, message: str, path: str, node: Any) -> ConfigFileError:
        return ConfigFileError(message, path=path, origin=f"{self.name}:{node.start_mark.line + 1}")


def _parts(node: Any) -> list[Any]:
    """Return the mappings of a merge key in reverse order, because the first one takes precedence."""
    return list(reversed(node.value)) if isinstance(node, yaml.SequenceNode) else [node]
