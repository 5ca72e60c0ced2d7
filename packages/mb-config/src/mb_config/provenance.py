"""Where each value came from, kept beside the config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from mb_config.section import given_fields

DEFAULT = "default"
_RECIPE, _RESOLVE = "recipe ", "resolve: "  # with what follows the word: a file may be called recipe.yaml


@dataclass(slots=True)
class Provenance:
    """Origin of each field, by dotted path.

    Origins are text: "default", "recipe gpt_tiny", "run.yaml:12", "command line", "code", "resolve: V143".
    """

    origins: dict[str, str] = field(default_factory=dict)
    """Every field whose origin is known; the others are defaults."""

    @classmethod
    def of(cls, config: object, *, origin: str = "code") -> Provenance:
        """Everything that was given to the sections of `config` so far comes from `origin`.

        What resolving set and nobody changed since comes from there.
        """
        known = cls(dict.fromkeys(given_paths(config), origin))
        for path, resolved in _resolved(config).items():
            if _is_unchanged(config, path, resolved.value):
                known.note(path, f"{_RESOLVE}{resolved.rule}")
        return known

    def note(self, path: str, origin: str) -> None:
        """Record that the field now holds a value from `origin`."""
        self.origins[path] = origin

    def origin(self, path: str) -> str:
        """Where the field's value came from."""
        return self.origins.get(path, DEFAULT)

    def by_user(self, path: str) -> bool:
        """True for a value from a file, the command line or code: whatever is no default, recipe or resolving."""
        origin = self.origin(path)
        return origin != DEFAULT and not origin.startswith((_RECIPE, _RESOLVE))

    def by_recipe(self, path: str) -> bool:
        """True for a recipe's value."""
        return self.origin(path).startswith(_RECIPE)


@dataclass(frozen=True, slots=True)
class _ResolvedValue:
    value: object
    rule: str


def remember_resolved(config: object, path: str, value: object, *, rule: str) -> None:
    """Note beside the config that resolving set a field, for sections that keep no record of their own."""
    if hasattr(config, "__dict__"):
        object.__setattr__(config, "_resolved", {**_resolved(config), path: _ResolvedValue(value, rule)})


def given_paths(config: object) -> Iterator[str]:
    """Paths of the fields that somebody chose, in a section and in the sections inside it.

    Keys of a mapping count as chosen. What resolving set and nobody changed since does not.
    """
    resolved = _resolved(config)
    for path in _given(config, path=""):
        if path not in resolved or not _is_unchanged(config, path, resolved[path].value):
            yield path


def _given(config: object, *, path: str) -> Iterator[str]:
    given = given_fields(config)
    for name, value in _members(config):
        here = f"{path}.{name}" if path else name
        if name in given or isinstance(config, Mapping):
            yield here
        if _is_section(value):
            yield from _given(value, path=here)


def _members(config: Any) -> Iterator[tuple[str, object]]:
    if isinstance(config, Mapping):
        yield from ((str(name), value) for name, value in config.items())
    elif is_dataclass(config):
        yield from ((item.name, getattr(config, item.name)) for item in fields(config) if item.init)


def _is_section(value: object) -> bool:
    return isinstance(value, Mapping) or (is_dataclass(value) and not isinstance(value, type))


def _resolved(config: object) -> Mapping[str, _ResolvedValue]:
    return getattr(config, "_resolved", {})


def _is_unchanged(config: object, path: str, value: object) -> bool:
    found: Any = config
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else getattr(found, name, None)
    return type(found) is type(value) and found == value
