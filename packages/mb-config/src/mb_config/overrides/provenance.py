"""Provenance: the origin of each value, stored separately from the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from mb_config.container.section import container_copy, given_record
from mb_schema.rules import value_at
from mb_schema.sections import SET_IN_CODE

Record = Mapping[str, tuple[str, Any]]
"""Who set a field, and a copy of a list or mapping as it then was, by the name of the field."""
DEFAULT = "default"
_CODE = SET_IN_CODE[0]
_RECIPE, _RESOLVE = "recipe ", "resolve: "  # with the separator: a file may be named recipe.yaml


@dataclass(slots=True)
class Provenance:
    """Origin of each field, by dotted path.

    Origins are text: "default", "recipe gpt_tiny", "run.yaml:12", "command line", "code", "resolve: V143".
    """

    origins: dict[str, str] = field(default_factory=dict)
    """Origin of each field. Fields that are not listed have their defaults."""

    @classmethod
    def of(cls, config: object, *, origin: str = "code") -> Provenance:
        """Return the origins of all fields that are set: the recipe that set them, or else `origin`.

        Values that resolving set and that are unchanged since come from resolving.
        """
        known = cls({path: origin if by == _CODE else by for path, by in given_paths(config).items()})
        for path, resolved in _resolved(config).items():
            if _is_unchanged(config, path, resolved.value):
                known.note(path, f"{_RESOLVE}{resolved.rule}")
        return known

    def note(self, path: str, origin: str) -> None:
        """Record the origin of the current value of a field."""
        self.origins[path] = origin

    def origin(self, path: str) -> str:
        """Return the origin of the value of a field."""
        return self.origins.get(path, DEFAULT)

    def origin_of_section(self, path: str) -> str | None:
        """Return the origin of the innermost section around a field that was set as a whole; None if none was."""
        while path := path.rpartition(".")[0]:
            if path in self.origins:
                return self.origins[path]
        return None

    def by_user(self, path: str) -> bool:
        """Return True for a value from a file, the command line or code, not from a default, a recipe or resolving."""
        origin = self.origin(path)
        return origin != DEFAULT and not origin.startswith((_RECIPE, _RESOLVE))

    @property
    def user_paths(self) -> list[str]:
        """Paths of the fields that the user set."""
        return [path for path in self.origins if self.by_user(path)]

    def by_recipe(self, path: str) -> bool:
        """Return True for a value from a recipe."""
        return self.origin(path).startswith(_RECIPE)


@dataclass(frozen=True, slots=True)
class _ResolvedValue:
    value: object
    rule: str
    of_run: bool = False
    written: object = None


def remember_resolved(
    config: object, path: str, value: object, *, rule: str, of_run: bool = False, written: object = None
) -> None:
    """Record in the configuration that resolving set a field, for sections that do not record it themselves.

    Args:
        config: The configuration.
        path: Dotted path of the field.
        value: Its value.
        rule: Name of the rule.
        of_run: The value is that of a single run, such as a path in its folder, and is not written to a file: the file
            is a configuration for other runs as well.
        written: What a file has instead; None: nothing.
    """
    if hasattr(config, "__dict__"):
        object.__setattr__(
            config, "_resolved", {**_resolved(config), path: _ResolvedValue(value, rule, of_run, written)}
        )


def paths_of_run(config: object) -> dict[str, object]:
    """Return the fields whose values are those of a single run and are unchanged since, with what a file has instead.

    See `remember_resolved`.
    """
    return {
        path: resolved.written
        for path, resolved in _resolved(config).items()
        if resolved.of_run and _is_unchanged(config, path, resolved.value)
    }


def given_paths(config: object) -> dict[str, str]:
    """Return who set a field, "code" or "recipe NAME", by the path of each field that is set.

    Keys of a mapping count as set. Values that resolving set and that are unchanged since do not.
    """
    resolved = _resolved(config)
    return {
        path: by
        for path, by in _given(config, given_record(config), path="")
        if path not in resolved or not _is_unchanged(config, path, resolved[path].value)
    }


def _given(config: object, record: Record, *, path: str) -> Iterator[tuple[str, str]]:
    for name, value in _members(config):
        here = f"{path}.{name}" if path else name
        by, before = record.get(name, SET_IN_CODE)
        if name in record or isinstance(config, Mapping):
            yield here, by if before in (None, value) else _CODE
        if isinstance(value, Mapping):
            yield from _given(value, _record_of_keys(value, by, before), path=here)
        elif is_dataclass(value) and not isinstance(value, type):
            yield from _given(value, given_record(value), path=here)


def _record_of_keys(value: Mapping[str, Any], by: str, before: Any) -> Record:
    """Return who set each key of a mapping that `by` set to `before`; keys that were changed since are left out."""
    if before is None:
        return dict.fromkeys(value, (by, None))
    same = (
        key
        for key, item in value.items()
        if (key in before and container_copy(item)) or before.get(key) == item
    )
    return {key: (by, container_copy(before.get(key))) for key in same}


def _members(config: Any) -> Iterator[tuple[str, object]]:
    if isinstance(config, Mapping):
        yield from ((str(name), value) for name, value in config.items())
    elif is_dataclass(config):
        yield from ((item.name, getattr(config, item.name)) for item in fields(config) if item.init)


def _resolved(config: object) -> Mapping[str, _ResolvedValue]:
    return getattr(config, "_resolved", {})


def _is_unchanged(config: object, path: str, value: object) -> bool:
    found = value_at(f"config.{path}", {"config": config})
    return type(found) is type(value) and found == value
