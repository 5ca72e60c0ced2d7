"""YAML as all packages read it: plain data of limited size and depth, whose numbers are those of people.

`1e-3` is a number, which is text in YAML 1.1; `12:00:00` is text, which is 43200 there, a number to the base of 60; a
date is text. The limits are checked before any value is built, because a few lines of aliases can expand to gigabytes.
PyYAML is passed by the caller, because this package has no dependencies.
"""

import re
from functools import cache
from typing import Any

LARGEST = 1 << 22
"""Maximum size of the text, in bytes."""
MOST_VALUES = 100_000
"""Maximum number of values, including those that aliases repeat."""
DEEPEST = 64
"""Maximum number of nested levels."""
VALUE_ERRORS = (ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""Errors of PyYAML for a value that is not of its tag, such as `!!int x` or `!!bool x`."""

_TAG = "tag:yaml.org,2002:"
EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
_BASE_60 = re.compile(r"[-+]?\d[\d_]*(:\d+)+(\.\d*)?$")
_NO_VALUES = frozenset(f"{_TAG}{name}" for name in ("timestamp", "binary", "set", "omap", "pairs"))
"""Tags of values that no settings hold."""


@cache
def settings_loader(yaml: Any) -> Any:
    """Return a safe loader class of PyYAML with the values and the maximum depth of this module."""

    class SettingsLoader(yaml.SafeLoader):  # type: ignore[misc]
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            """Count levels, because PyYAML itself recurses until Python's stack overflows."""
            self.depth += 1
            if self.depth > DEEPEST:
                mark = self.peek_event().start_mark
                raise yaml.MarkedYAMLError(problem=f"nested deeper than {DEEPEST} levels", problem_mark=mark)
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    # the first pattern that matches determines the tag
    SettingsLoader.yaml_implicit_resolvers = {
        first_character: [
            (f"{_TAG}str", _BASE_60),
            *((tag, pattern) for tag, pattern in resolvers if tag not in _NO_VALUES),
        ]
        for first_character, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    SettingsLoader.add_implicit_resolver(f"{_TAG}float", EXPONENT, list("-+0123456789."))
    SettingsLoader.yaml_constructors = {
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag not in _NO_VALUES
    }
    return SettingsLoader


def load_settings(text: str, yaml: Any) -> Any:
    """Return the value of a YAML text; None for an empty one.

    Args:
        text: The text.
        yaml: The module `yaml` of PyYAML.

    Raises:
        yaml.YAMLError: It is not YAML, has a value that is not of its tag, or is beyond a limit.
    """
    if len(text) > LARGEST:
        raise yaml.YAMLError(f"larger than {LARGEST} characters")
    loader = settings_loader(yaml)(text)
    try:
        node = loader.get_single_node()
        if node is not None and _size(node, {}) > MOST_VALUES:
            raise yaml.YAMLError(f"aliases make more than {MOST_VALUES} values")
        return None if node is None else loader.construct_document(node)
    except RecursionError as error:
        raise yaml.YAMLError("a value contains itself through an alias") from error
    except VALUE_ERRORS as error:
        raise yaml.YAMLError(f"a value is not of its tag ({error})") from error


def parse_settings(content: bytes, yaml: Any) -> dict[str, Any] | None:
    """Return the mapping in a YAML text of unknown origin; None if `load_settings` fails, or keys are not text.

    Args:
        content: The text in UTF-8.
        yaml: The module `yaml` of PyYAML.
    """
    if len(content) > LARGEST:
        return None
    try:
        data = load_settings(content.decode(), yaml)
    except (yaml.YAMLError, UnicodeDecodeError):
        return None
    return data if isinstance(data, dict) and all(isinstance(key, str) for key in data) else None


def _size(node: Any, sizes: dict[int, int]) -> int:
    """Return the number of values that a node expands to. A node that contains itself overflows the stack.

    Args:
        node: A node of PyYAML: its value is a text, a list of nodes, or a list of pairs of a key and a value.
        sizes: Receives the size of each node by its identity, so that an alias is not walked again.
    """
    if id(node) not in sizes:
        children = getattr(node, "value", ())
        size = 1
        for child in children if isinstance(children, list) else ():
            parts = child if isinstance(child, tuple) else (child,)
            size += sum(_size(part, sizes) for part in parts)
        sizes[id(node)] = size
    return sizes[id(node)]
