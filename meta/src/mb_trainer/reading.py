"""Parsing of command-line arguments into a configuration that records the origin of its values. No torch."""

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mb_config import ConfigReadError, Provenance, apply_overrides, apply_yaml
from mb_config.overrides import SECTION_FACTORIES
from mb_config.shell_line import reject_spaced
from mb_config.yaml_file import read_yaml
from mb_models.peft.config import PeftError, section_by_name
from mb_trainer.config import TARGETS, ConfigContainer
from mb_trainer.recipes import RECIPES

DEFAULT_RECIPE = "gpt_tiny"


def adapters(name: str) -> object:
    """Return the section `peft` by its name.

    Raises:
        ConfigReadError: the name is unknown.
    """
    try:
        return section_by_name(name)
    except PeftError as error:
        raise ConfigReadError(str(error)) from error


SECTIONS_BY_NAME = {**SECTION_FACTORIES, "peft": adapters}
"""Factories of sections from a name, as in `peft=lora`."""


class UnknownRecipeError(ConfigReadError, LookupError):
    """Error for a name that is neither a recipe nor a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Requested configuration."""

    name: str
    """Name of the recipe, or of the YAML file without its suffix."""
    config: ConfigContainer
    provenance: Provenance


def read_request(
    words: Sequence[str], *, files: Sequence[Path] = (), unread: list[ConfigReadError] | None = None
) -> Request:
    """Read `[RECIPE] [KEY=VALUE ...]` and overlay files.

    Precedence from low to high: class default, recipe, files in order, arguments.

    Args:
        words: Recipe and overrides.
        files: Overlays.
        unread: Receives the errors of settings, which then keep their previous value, instead of raising them.

    Raises:
        ConfigReadError: an unknown recipe, unknown keys, wrong types or unreadable files; holds all errors found.
    """
    reject_spaced(words)
    named = bool(words) and not is_override(words[0])
    recipe, overrides = (words[0], words[1:]) if named else (DEFAULT_RECIPE, words)
    request = from_recipe(recipe, unread=unread)
    options: dict[str, Any] = {
        "section_factories": SECTIONS_BY_NAME,
        "targets": TARGETS,
        "provenance": request.provenance,
    }
    for file in files:
        with collected(unread):
            apply_yaml(request.config, file, **options)
    with collected(unread):
        apply_overrides(request.config, overrides, **options)
    return request


@contextmanager
def collected(errors: list[ConfigReadError] | None) -> Iterator[None]:
    """Dropped problem -> rules whose problems imply it, or that would reject what it advises."""
    try:
        yield
    except ConfigReadError as error:
        if errors is None:
            raise
        errors.extend(error.errors)


def is_override(word: str) -> bool:
    """Return whether an argument is an override rather than a recipe."""
    return "=" in word or word.startswith(("+", "~"))


def from_recipe(name: str, *, unread: list[ConfigReadError] | None = None) -> Request:
    """Build a recipe by its name, or read a YAML file with a complete configuration; `unread` as in `read_request`."""
    if name in RECIPES:
        config = RECIPES[name].build()
        return Request(name=name, config=config, provenance=Provenance.of(config, origin=f"recipe {name}"))
    path = Path(name)
    if path.suffix not in (".yaml", ".yml") and not path.is_file():
        near = difflib.get_close_matches(name, RECIPES, n=3) or list(RECIPES)
        raise UnknownRecipeError(
            f"{name}: is no recipe and no YAML file. Nearest: {', '.join(near)}; `mb recipes` lists all. "
            "An override has the form section.field=value."
        )
    provenance = Provenance()
    try:
        config = ConfigContainer.from_yaml(path, TARGETS, provenance=provenance)
    except ConfigReadError as error:
        if unread is None:
            raise
        config = read_without(path, error)
        unread.extend(error.errors)
    return Request(name=path.stem, config=config, provenance=provenance)


def read_without(path: Path, error: ConfigReadError) -> ConfigContainer:
    """Read a configuration without its unreadable settings.

    Raises:
        ConfigReadError: `error`, if there is no configuration without them.
    """
    if any(not part.path for part in error.errors):
        raise error
    data = read_yaml(path).data
    for part in error.errors:
        *parents, name = part.path.partition("[")[0].split(".")
        section: Any = data
        for parent in parents:
            section = section.get(parent) if isinstance(section, dict) else None
        if isinstance(section, dict):
            section.pop(name, None)
    try:
        return ConfigContainer.from_dict(data, TARGETS)
    except ConfigReadError:
        raise error from None
