"""Configuration of a command line: `RECIPE KEY=VALUE ...` and overlay files, with the origin of each value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import Any

from mb_config.cli.message_text import truncate_repr
from mb_config.container.codec import NO_TARGETS
from mb_config.container.container import ConfigContainer
from mb_config.container.field_access import default_of, set_field
from mb_config.container.plain_config import PlainConfig, read_plain_config
from mb_config.container.yaml_file import read_yaml
from mb_config.errors import ConfigReadError, TargetError
from mb_config.overrides.apply import (
    COMMAND_LINE,
    SECTION_FACTORIES,
    SectionFactories,
    apply_overrides,
    merge_yaml,
)
from mb_config.overrides.base_recipe import (
    PYTHON_FILE,
    YAML_SUFFIXES,
    base_of,
    reject_base_cycle,
    without_base,
)
from mb_config.overrides.provenance import Provenance
from mb_config.overrides.registration import Recipe
from mb_config.overrides.shell_line import reject_spaced
from mb_schema.rules import NOTHING, value_at


class UnknownRecipeError(ConfigReadError, LookupError):
    """A name that is neither a recipe nor a file."""


class RecipeResultError(ConfigReadError, TypeError):
    """A function of a recipe that cannot be called, or that returns no configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRequest:
    """Requested configuration."""

    name: str
    """Name of the recipe, or of the YAML file without its suffix."""

    config: Any
    """The configuration, not resolved."""

    base: str | None = None
    """Recipe or file that the file of this name is applied to; None: the request is that recipe or file itself."""

    recipe: Recipe | None = None
    """Recipe that built the configuration, with its code; None: it comes from a file."""

    provenance: Provenance
    """Origin of each value."""

    plain: PlainConfig | None = None
    """What is known about the file, if its sections were read without their classes."""

    @property
    def sections(self) -> tuple[str, ...] | None:
        """Names of the sections to check; None: all."""
        return None if self.plain is None else (*self.plain.known, *self.plain.external)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeReader:
    """Reader of recipes and of YAML files with the sections' classes."""

    container: type[ConfigContainer]
    """Class of the configurations, with the types of all sections."""

    recipes: Mapping[str, Recipe] = field(default_factory=lambda: NOTHING)
    """Recipes by name."""

    default: str | None = None
    """Recipe or file that is read if the arguments name none."""

    targets: Mapping[str, type] = field(default_factory=lambda: NO_TARGETS)
    """Classes that `_target_` in a file may name."""

    section_factories: SectionFactories = field(default_factory=lambda: SECTION_FACTORIES)
    """Section path to the function that makes the section from a name, as in `peft=lora`."""

    list_command: str = ""
    """Command that lists the recipes, for messages."""

    recipe_of_file: Callable[[str], tuple[str, Recipe]] | None = None
    """Function that returns name and recipe of a Python file, `FILE.py:NAME`; None: files of Python are rejected."""

    imported_classes: Mapping[str, Callable[[str], bool]] = field(default_factory=lambda: NOTHING)
    """Path of a field that names a class which a run imports, to a function that returns whether a file may name it."""

    def split(self, arguments: Sequence[str], files: Sequence[Path] = ()) -> tuple[str, Sequence[str]]:
        """Return the name of the recipe or file, and the overrides.

        Without a name in the arguments it is the `base` of the files, or else the default.

        Raises:
            ConfigReadError: An override is split at spaces, there is neither a recipe nor a default, or two different
                recipes are named.
        """
        reject_spaced(arguments)
        bases = {str(file): base for file in files if (base := base_of(file)) is not None}
        if arguments and not is_override(arguments[0]):
            bases = {"the command line": arguments[0], **bases}
            arguments = arguments[1:]
        if len(set(bases.values())) > 1:
            named = ", ".join(f"{base} ({where})" for where, base in bases.items())
            raise ConfigReadError(f"base: several recipes are named: {named}. Keep one.")
        if bases:
            return next(iter(bases.values())), arguments
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
        name, overrides = self.split(arguments, files)
        request = self._from_recipe(name, unread=unread)
        accepted = self._classes(request.config)
        options: dict[str, Any] = {
            "section_factories": self.section_factories,
            "targets": self.targets,
            "provenance": request.provenance,
        }
        for file in files:
            with _collected(unread):
                merge_yaml(request.config, without_base(read_yaml(file)), **options)
        with _collected(unread):
            apply_overrides(request.config, overrides, **options)
        with _collected(unread):
            self._reject_imports(request, accepted=accepted)
        if files and len(overrides) == len(arguments):  # no recipe is named: the last file is the run's name
            return replace(request, name=Path(files[-1]).stem, base=name)
        return request

    def _classes(self, config: Any) -> dict[str, object]:
        """Return the classes for import that a configuration names, by the path of the field."""
        return {path: value_at(path, config.sections()) for path in self.imported_classes}

    def _reject_imports(self, request: ConfigRequest, *, accepted: Mapping[str, object]) -> None:
        """Reject classes that a file names and that may not be imported; the fields then have their defaults.

        Raises:
            TargetError: A class is not accepted.
        """
        for path, name in self._classes(request.config).items():
            origin = request.provenance.origin(path)
            if name in (None, accepted.get(path)) or origin == COMMAND_LINE:
                continue
            if not self.imported_classes[path](str(name)):
                set_field(request.config, path, default_of(request.config, path))
                raise TargetError(
                    f"{truncate_repr(name)} is not allowed in a file, because a file imports no code. Give its module "
                    "with --import, or the class on the command line.",
                    path=path,
                    origin=origin,
                )

    def _from_recipe(self, name: str, *, unread: list[ConfigReadError] | None) -> ConfigRequest:
        """Return the request of a recipe, of a Python file, or of a YAML file.

        Raises:
            UnknownRecipeError: The name is none of these.
        """
        if name in self.recipes:
            return _built(name, self.recipes[name], source=f"recipe {name}")
        if self.recipe_of_file is not None and PYTHON_FILE.fullmatch(name):
            return _built(*self.recipe_of_file(name), source=name)
        path = Path(name)
        if path.suffix not in YAML_SUFFIXES and not path.is_file():
            raise UnknownRecipeError(self._unknown(name))
        if base_of(path) is not None:
            reject_base_cycle(path)
            return self.read([], files=[path], unread=unread)
        provenance = Provenance()
        try:
            config = self.container.from_yaml(path, self.targets, provenance=provenance)
        except ConfigReadError as error:
            if unread is None:
                raise
            config = self._without_unreadable(path, error)
            unread.extend(error.errors)
        request = ConfigRequest(name=path.stem, config=config, provenance=provenance)
        with _collected(unread):
            self._reject_imports(request, accepted=NOTHING)
        return request

    def _unknown(self, name: str) -> str:
        near = get_close_matches(name, self.recipes, n=3)
        nearest = f" Nearest: {', '.join(near)};" if near else ""
        listed = f"{nearest} `{self.list_command}` lists all." if self.recipes else ""
        return f"{name}: is neither a recipe nor a YAML file.{listed} An override has the form section.field=value."

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


def read_plain_request(arguments: Sequence[str], *, files: Sequence[Path] = ()) -> ConfigRequest:
    """Read `FILE KEY=VALUE ...` and overlay files, without the classes of sections of other packages.

    Raises:
        ConfigReadError: An override is split at spaces, there is no file, keys are unknown, types are wrong, or files
            cannot be read; contains all errors.
    """
    name, overrides = RecipeReader(container=ConfigContainer).split(arguments, files)
    overlays = list(files)
    reject_base_cycle(name)
    while (base := base_of(name)) is not None:
        overlays.insert(0, Path(name))
        name = base
    plain = read_plain_config(name, overrides, files=overlays)
    named = Path(arguments[0]) if len(overrides) < len(arguments) else [Path(name), *files][-1]
    base = None if named == Path(name) else name
    return ConfigRequest(
        name=named.stem, base=base, config=plain.config, provenance=plain.provenance, plain=plain
    )


def _built(name: str, recipe: Recipe, *, source: str) -> ConfigRequest:
    """Return the configuration of a recipe.

    Raises:
        RecipeResultError: The function of the recipe has a parameter without a default, or returns no configuration.
    """
    try:
        signature(recipe.build).bind()
    except TypeError as error:
        raise RecipeResultError(
            f"{source}: the function of a recipe is called without arguments, and this one has a parameter without a "
            f"default ({error}). Give it a default, or name a function that calls it."
        ) from None
    except ValueError:  # a builtin, whose signature Python does not know
        pass
    config = recipe.build()
    if not callable(getattr(config, "sections", None)):
        missing = " Does it lack a return?" if config is None else ""
        raise RecipeResultError(
            f"{source}: the function of a recipe returns a configuration, and this one returned {config!r:.60}."
            f"{missing} Return a ConfigContainer."
        )
    provenance = Provenance.of(config, origin=source)
    return ConfigRequest(name=name, config=config, recipe=recipe, provenance=provenance)


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
