"""Configuration of a command line: `RECIPE KEY=VALUE ...` and overlay files, with the origin of each value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol

from mb_config._rules import NOTHING
from mb_config.codec import NO_TARGETS
from mb_config.container import ConfigContainer
from mb_config.errors import ConfigReadError
from mb_config.overrides import SECTION_FACTORIES, SectionFactories, apply_overrides, apply_yaml
from mb_config.plain_config import PlainConfig, read_plain_config
from mb_config.provenance import Provenance
from mb_config.shell_line import reject_spaced
from mb_config.yaml_file import read_yaml

_SUFFIXES = (".yaml", ".yml")


class UnknownRecipeError(ConfigReadError, LookupError):
    """A name that is neither a recipe nor a file."""

    __str__ = ConfigReadError.__str__


class RecipeLike(Protocol):
    """Recipe: a named configuration in code."""

    @property
    def build(self) -> Callable[[], Any]:
        """Function that returns a new configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRequest:
    """Requested configuration."""

    name: str
    """Name of the recipe, or of the YAML file without its suffix."""

    config: Any
    """The configuration, not resolved."""

    provenance: Provenance
    """Origin of each value."""

    plain: PlainConfig | None = None
    """What is known about the file, if its sections were read without their classes."""

    @property
    def sections(self) -> tuple[str, ...] | None:
        """Names of the sections to check; None: all."""
        return None if self.plain is None else (*self.plain.known, *self.plain.external)


class RequestReader(Protocol):
    """Reader of the configurations that a command line names."""

    @property
    def container(self) -> type[ConfigContainer]:
        """Class of the configurations."""

    @property
    def targets(self) -> Mapping[str, type]:
        """Classes that `_target_` in a file may name."""

    @property
    def section_factories(self) -> SectionFactories:
        """Section path to the function that makes the section from a name."""

    def split(self, arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
        """Return the name of the recipe or file, and the overrides."""

    def read(
        self,
        arguments: Sequence[str],
        *,
        files: Sequence[Path] = (),
        unread: list[ConfigReadError] | None = None,
    ) -> ConfigRequest:
        """Read `RECIPE KEY=VALUE ...`; `files` are applied between recipe and overrides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeReader:
    """Reader of recipes and of YAML files with the sections' classes."""

    container: type[ConfigContainer]
    """Class of the configurations, with the types of all sections."""

    recipes: Mapping[str, RecipeLike] = field(default_factory=lambda: NOTHING)
    """Recipes by name."""

    default: str | None = None
    """Recipe or file that is read if the arguments name none."""

    targets: Mapping[str, type] = field(default_factory=lambda: NO_TARGETS)
    """Classes that `_target_` in a file may name."""

    section_factories: SectionFactories = SECTION_FACTORIES
    """Section path to the function that makes the section from a name, as in `peft=lora`."""

    list_command: str = ""
    """Command that lists the recipes, for messages."""

    def split(self, arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
        """Return the name of the recipe or file, and the overrides.

        Raises:
            ConfigReadError: An override is split at spaces, or there is neither a recipe nor a default.
        """
        reject_spaced(arguments)
        if arguments and not is_override(arguments[0]):
            return arguments[0], arguments[1:]
        if self.default is None:
            names = "recipe and no file" if self.recipes else "file"
            raise ConfigReadError(f"no {names} is given. Name one before the overrides.")
        return self.default, arguments

    def read(
        self,
        arguments: Sequence[str],
        *,
        files: Sequence[Path] = (),
        unread: list[ConfigReadError] | None = None,
    ) -> ConfigRequest:
        """Read `RECIPE KEY=VALUE ...` and overlay files.

        Precedence from low to high: class default, recipe, files in order, arguments.

        Args:
            arguments: Recipe or file, and overrides.
            files: Overlays.
            unread: Receives the errors of settings, which then keep their previous value, instead of raising them.

        Raises:
            UnknownRecipeError: The name is neither a recipe nor a file.
            ConfigReadError: Unknown keys, wrong types or unreadable files; contains all errors.
        """
        name, overrides = self.split(arguments)
        request = self._from_recipe(name, unread=unread)
        options: dict[str, Any] = {
            "section_factories": self.section_factories,
            "targets": self.targets,
            "provenance": request.provenance,
        }
        for file in files:
            with _collected(unread):
                apply_yaml(request.config, file, **options)
        with _collected(unread):
            apply_overrides(request.config, overrides, **options)
        return request

    def _from_recipe(self, name: str, *, unread: list[ConfigReadError] | None) -> ConfigRequest:
        if name in self.recipes:
            config = self.recipes[name].build()
            return ConfigRequest(
                name=name, config=config, provenance=Provenance.of(config, origin=f"recipe {name}")
            )
        path = Path(name)
        if path.suffix not in _SUFFIXES and not path.is_file():
            raise UnknownRecipeError(self._unknown(name))
        provenance = Provenance()
        try:
            config = self.container.from_yaml(path, self.targets, provenance=provenance)
        except ConfigReadError as error:
            if unread is None:
                raise
            config = self._without_unreadable(path, error)
            unread.extend(error.errors)
        return ConfigRequest(name=path.stem, config=config, provenance=provenance)

    def _unknown(self, name: str) -> str:
        near = get_close_matches(name, self.recipes, n=3) or list(self.recipes)
        listed = f" Nearest: {', '.join(near)}; `{self.list_command}` lists all." if near else ""
        return f"{name}: is no recipe and no YAML file.{listed} An override has the form section.field=value."

    def _without_unreadable(self, path: Path, error: ConfigReadError) -> ConfigContainer:
        """Read a file without its unreadable settings.

        Raises:
            ConfigReadError: `error`, if there is no configuration without them.
        """
        if any(not part.path for part in error.errors):
            raise error
        data = read_yaml(path).data
        for part in error.errors:
            _remove(data, part.path)
        try:
            return self.container.from_dict(data, self.targets)
        except ConfigReadError:
            raise error from None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainReader:
    """Reader of YAML files whose sections of other packages are plain mappings. Needs none of these packages."""

    container: type[ConfigContainer] = ConfigContainer
    targets: Mapping[str, type] = field(default_factory=lambda: NO_TARGETS)
    section_factories: SectionFactories = SECTION_FACTORIES

    def split(self, arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
        """Return the file and the overrides.

        Raises:
            ConfigReadError: An override is split at spaces, or there is no file.
        """
        return RecipeReader(container=self.container).split(arguments)

    def read(
        self,
        arguments: Sequence[str],
        *,
        files: Sequence[Path] = (),
        unread: list[ConfigReadError] | None = None,
    ) -> ConfigRequest:
        """Read `FILE KEY=VALUE ...` and overlay files.

        Raises:
            ConfigReadError: Unknown keys, wrong types or unreadable files, also if `unread` is given; contains all
                errors.
        """
        name, overrides = self.split(arguments)
        plain = read_plain_config(name, overrides, files=files)
        return ConfigRequest(
            name=Path(name).stem, config=plain.config, provenance=plain.provenance, plain=plain
        )


def is_override(argument: str) -> bool:
    """Return True if an argument is an override rather than a recipe or a file."""
    return "=" in argument or argument.startswith(("+", "~"))


@contextmanager
def _collected(errors: list[ConfigReadError] | None) -> Iterator[None]:
    """Append read errors to `errors`; raise them if it is None."""
    try:
        yield
    except ConfigReadError as error:
        if errors is None:
            raise
        errors.extend(error.errors)


def _remove(data: Mapping[str, Any], path: str) -> None:
    *parents, name = path.partition("[")[0].split(".")
    section: Any = data
    for parent in parents:
        section = section.get(parent) if isinstance(section, dict) else None
    if isinstance(section, dict):
        section.pop(name, None)
