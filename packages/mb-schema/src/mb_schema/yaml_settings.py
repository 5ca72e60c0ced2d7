"""Settings in a YAML text that may come from elsewhere: plain data of limited size and depth.

PyYAML is passed by the caller, because this package has no dependencies.
"""

from typing import Any

LARGEST = 1 << 22
"""Bytes of the largest text."""
MOST_VALUES = 100_000
"""Largest number of values, including those that aliases repeat."""
DEEPEST = 64
"""Largest number of levels."""


def parse_settings(content: bytes, yaml: Any) -> dict[str, Any] | None:
    """Return the mapping in a YAML text; None if it has another content, or one of absurd size or depth.

    Args:
        content: The text in UTF-8.
        yaml: The module `yaml` of PyYAML, which the caller requires.
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
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):  # ValueError: dates, numbers, encodings
        return None
    return data if isinstance(data, dict) and all(isinstance(key, str) for key in data) else None


def _check_depth(events: Any, yaml: Any) -> None:
    """Check the number of levels, because PyYAML itself recurses until Python's stack overflows.

    Raises:
        ValueError: There are too many.
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
