"""Where each value came from, kept beside the config."""

from __future__ import annotations

from collections.abc import Iterator
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
        """Everything that was given to the sections of `config` so far comes from `origin`."""
        return cls(dict.fromkeys(given_paths(config), origin))

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


def given_paths(config: object, *, path: str = "") -> Iterator[str]:
    """Paths of the fields that somebody chose, in a section and in the sections inside it."""
    given = given_fields(config)
    for name in _names(config):
        here = f"{path}.{name}" if path else name
        value = getattr(config, name)
        if name in given:
            yield here
        if is_dataclass(value) and not isinstance(value, type):
            yield from given_paths(value, path=here)


def _names(config: Any) -> list[str]:
    return [f.name for f in fields(config) if f.init]
