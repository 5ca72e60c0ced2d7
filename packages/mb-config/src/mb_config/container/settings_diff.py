"""Differences between two configurations in their serialised form, as a resumed run compares them."""

from collections.abc import Collection, Mapping
from typing import Any


def settings_differences(
    saved: Mapping[str, Any],
    wanted: Mapping[str, Any],
    *,
    chosen: Mapping[str, Any] | None = None,
    ignored: Collection[str] = (),
) -> dict[str, tuple[Any, Any]]:
    """Return dotted path -> (saved, wanted) for every leaf in which two configurations differ.

    Args:
        saved: The configuration that was written first, as `ConfigContainer.to_dict` returns it.
        wanted: The other one.
        chosen: The non-default part of `wanted` (`to_dict(defaults=False)`). A field that `saved` lacks, because an
            earlier version wrote it, is not a difference if it has its default; None counts every such field.
        ignored: Paths that are not compared.
    """
    old, new = _leaves(saved), _leaves(wanted)
    paths = [path for path in dict.fromkeys((*old, *new)) if path not in ignored]
    if chosen is not None:
        known = _leaves(chosen)
        later = {path for path in new if path not in old and path not in known}
        paths = [path for path in paths if path not in later or _is_chosen(path, saved=saved, chosen=chosen)]
    return {path: (old.get(path), new.get(path)) for path in paths if old.get(path) != new.get(path)}


def _is_chosen(path: str, *, saved: Mapping[str, Any], chosen: Mapping[str, Any]) -> bool:
    """Return whether the section of a field was added by the user."""
    section = path.partition(".")[0]
    return section in chosen and not isinstance(saved.get(section), Mapping)


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return dotted path -> leaf; lists and empty mappings are leaves."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        leaves.update(_leaves(value, f"{path}.") if isinstance(value, Mapping) and value else {path: value})
    return leaves
