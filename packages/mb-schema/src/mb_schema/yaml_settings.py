"""Settings in a YAML text that may come from elsewhere: plain data of limited size and depth."""

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
        found = loader.construct_document(node)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):  # ValueError: dates, numbers, encodings
        return None
    return found if isinstance(found, dict) and all(isinstance(key, str) for key in found) else None


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


def _size(node: Any, known: dict[int, int]) -> int:
    """Return the number of values that a node expands to. A node that contains itself overflows the stack."""
    if id(node) not in known:
        children = getattr(node, "value", ())
        pairs = children if isinstance(children, list) else []
        known[id(node)] = 1 + sum(
            _size(each, known) for pair in pairs for each in (pair if isinstance(pair, tuple) else (pair,))
        )
    return known[id(node)]
