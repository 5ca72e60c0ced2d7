"""Settings in a YAML text of unknown origin: plain data of limited size and depth.

The limits are checked before any value is built, because a few lines of aliases can expand to gigabytes. PyYAML is
passed by the caller, because this package has no dependencies.
"""

from typing import Any

LARGEST = 1 << 22
"""Maximum size of the text, in bytes."""
MOST_VALUES = 100_000
"""Maximum number of values, including those that aliases repeat."""
DEEPEST = 64
"""Maximum number of nested levels."""
_VALUE_ERRORS = (ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""Errors of PyYAML for a value that is not of its tag, such as a date 2024-99-99, `!!int x` or `!!bool x`."""


def parse_settings(content: bytes, yaml: Any) -> dict[str, Any] | None:
    """Return the mapping in a YAML text; None if it is not YAML, not a mapping with text keys, or beyond a limit.

    Args:
        content: The text in UTF-8.
        yaml: The module `yaml` of PyYAML.
    """
    if len(content) > LARGEST:
        return None
    try:
        text = content.decode()
        _check_depth(yaml.parse(text, Loader=yaml.SafeLoader), yaml)
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None or _size(node, {}) > MOST_VALUES:
            return None
        data = loader.construct_document(node)
    except (yaml.YAMLError, RecursionError, *_VALUE_ERRORS):  # RecursionError: an alias that contains itself
        return None
    return data if isinstance(data, dict) and all(isinstance(key, str) for key in data) else None


def _check_depth(events: Any, yaml: Any) -> None:
    """Check the number of levels, because PyYAML itself recurses until Python's stack overflows.

    Raises:
        ValueError: There are more than `DEEPEST`.
    """
    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"nested deeper than {DEEPEST} levels")


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
