"""Recipes, classes and rules that users add to a program: of installed distributions, modules and single files.

Code is only run if the user installed it as a distribution with entry points, imports the module by name, or names the
file. A configuration file never imports anything: its `_target_` names one of the classes known by then.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import wraps
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from mb_config.container.codec import target_name
from mb_config.container.section import set_by
from mb_config.errors import ConfigReadError
from mb_schema.rules import Rule

Config = TypeVar("Config")
Parameters = ParamSpec("Parameters")


class RegistrationError(ConfigReadError):
    """Module, file or entry point of a user that cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Named, complete configuration in code."""

    build: Callable[[], Any]
    """Function that returns a new configuration, which the caller may modify."""

    summary: str = ""
    """One line for a list of recipes."""

    processes: int = 1
    """Smallest number of processes that its parallel layout is intended for; multiples of it work, too."""

    code: Any = None
    """Code that a run of this recipe uses in addition to the configuration, as the program defines it; None: none."""


def recipe(
    summary: str, *, processes: int = 1
) -> Callable[[Callable[Parameters, Config]], Callable[Parameters, Config]]:
    """Return a decorator of a function that builds a configuration, which makes it a recipe (`recipes_in`).

    Its values count as those of the recipe, not as the user's: only so does a setting that the caller assigns to the
    configuration take precedence over them, as on the command line. The arguments are fields of `Recipe`.
    """

    def of(build: Callable[Parameters, Config]) -> Callable[Parameters, Config]:
        @wraps(build)
        def build_recipe(*values: Parameters.args, **named: Parameters.kwargs) -> Config:
            config = build(*values, **named)
            set_by(config, f"recipe {build.__name__}")
            return config

        vars(build_recipe)["_recipe"] = Recipe(build=build_recipe, summary=summary, processes=processes)
        return build_recipe

    return of


def recipes_in(module: Mapping[str, Any]) -> dict[str, Recipe]:
    """Return the recipes that a module defines, by name, in the order of definition; called with its `vars()`."""
    return {
        name: value._recipe
        for name, value in module.items()
        if hasattr(value, "_recipe") and value.__module__ == module["__name__"]
    }


def as_recipe(value: object, *, source: str) -> Recipe:
    """Return a recipe, or that of a function that builds a configuration; its summary is the docstring's first line.

    Raises:
        RegistrationError: The value is neither.
    """
    if isinstance(value, Recipe):
        return value
    if not callable(value) or isinstance(value, type):
        raise RegistrationError(
            f"{source}: {value!r} is not a recipe. Give a function that returns a configuration, or a Recipe."
        )
    return Recipe(build=value, summary=(value.__doc__ or "").strip().partition("\n")[0])


class RecipeTable(Mapping[str, Recipe]):
    """Recipes by name: those of a program, of imported modules, and of installed distributions.

    Entry points are read when a name is not known otherwise, and loaded when their recipe is used.

    Args:
        recipes: Recipes of the program.
        group: Group of entry points; empty: none are read.
    """

    def __init__(self, recipes: Mapping[str, Recipe], *, group: str = "") -> None:
        self._recipes = dict(recipes)
        self._sources = dict.fromkeys(recipes, "this program")
        self._group = group
        self._installed: dict[str, EntryPoint] | None = None

    def add(self, name: str, recipe: Recipe, *, source: str) -> None:
        """Add a recipe; adding the same one again has no effect.

        Raises:
            RegistrationError: Another source has a recipe of this name.
        """
        if self._recipes.get(name) == recipe:
            return
        if name in self._recipes:
            raise RegistrationError(
                f"{source}: recipe {name} is already defined by {self._sources[name]}. Rename one of them."
            )
        self._recipes[name] = recipe
        self._sources[name] = source

    def __getitem__(self, name: str) -> Recipe:
        if name not in self._recipes:
            point = self._points()[name]
            self._recipes[name] = as_recipe(_load(point), source=_described(point))
        return self._recipes[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._recipes
        yield from (name for name in self._points() if name not in self._recipes)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def modules(self) -> set[str]:
        """Return the modules that the entry points name, without loading them."""
        return {point.module for point in self._points().values()}

    def _points(self) -> dict[str, EntryPoint]:
        if self._installed is None:
            found = entry_points(group=self._group) if self._group else ()
            self._installed = {point.name: point for point in found}
        return self._installed


class ClassTable(Mapping[str, type]):
    """Classes by dotted name that `_target_` in a file may name, beyond those in the types of the fields.

    Args:
        groups: Groups of entry points, each of which names a class. They are loaded when the table is first read; one
            that cannot be loaded is a warning.
        program: Modules of the program, whose dataclasses are in the table. They are imported when it is first read.
        hint: Advice for a class that is not in the table.
    """

    def __init__(self, groups: Iterable[str] = (), *, program: Iterable[str] = (), hint: str = "") -> None:
        self.hint = hint
        self._groups = tuple(groups)
        self._program = tuple(program)
        self._classes: dict[str, type] = {}
        self._read = False

    def add(self, classes: Iterable[type]) -> None:
        """Add classes."""
        self._classes |= {target_name(cls): cls for cls in classes}

    def __getitem__(self, name: str) -> type:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def modules(self) -> set[str]:
        """Return the modules that the entry points name, without loading them."""
        return {point.module for point in self._points()}

    def _points(self) -> list[EntryPoint]:
        return [point for group in self._groups for point in entry_points(group=group)]

    def _all(self) -> dict[str, type]:
        if not self._read:
            self._read = True
            for module in self._program:
                self.add(_dataclasses_in(import_module(module)))
            for point in self._points():
                try:
                    self.add([_load(point)])
                except RegistrationError as error:
                    warnings.warn(f"{error} Its class is not known.", stacklevel=2)
        return self._classes


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Recipes, classes and rules of a program and of its users."""

    recipes: RecipeTable
    """Recipes by name."""

    classes: ClassTable = field(default_factory=ClassTable)
    """Further classes that `_target_` may name."""

    rules_by_package: dict[str, Sequence[Rule]] = field(default_factory=dict)
    """Rules by the package or module that defines them."""

    imported: list[str] = field(default_factory=list)
    """Modules that were imported by name, in order; a process that the program starts imports them, too."""

    accepted: set[str] = field(default_factory=set)
    """Top-level packages whose classes a file may name, besides those of entry points."""

    def accepts(self, name: str) -> bool:
        """Return whether a file may name this class for import: the user has installed or imported its package.

        That is the package of an entry point, of an imported module or of a recipe's file, or one in `accepted`.
        """
        installed = {module.partition(".")[0] for module in self.recipes.modules() | self.classes.modules()}
        return name.partition(".")[0] in self.accepted | installed

    def import_module(self, name: str) -> None:
        """Import a module and add its `RECIPES` (name -> recipe or function), `RULES` and dataclasses.

        The working directory is searched, too.

        Raises:
            RegistrationError: The module cannot be imported, or a recipe of the same name exists.
        """
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        try:
            module = import_module(name)
        except Exception as error:
            raise RegistrationError(f"--import {name}: cannot be imported ({_reason(error)}).") from error
        self._add(module, source=name)
        if name not in self.imported:
            self.imported.append(name)

    def recipe_of_file(self, text: str) -> tuple[str, Recipe]:
        """Return the name and the recipe of `FILE.py:NAME`, or of `FILE.py` with a single recipe.

        `NAME` is a function that returns a configuration, or a `Recipe`. The rules and dataclasses of the file are
        added as those of a module.

        Raises:
            RegistrationError: The file cannot be run, or has no such recipe.
        """
        file, _, attribute = text.partition(".py:")
        path = Path(file if file.endswith(".py") else f"{file}.py")
        module = _module_of_file(path)
        self._add(module, source=str(path), with_recipes=False)
        recipes = _recipes_in(module)
        if not attribute and len(recipes) != 1:
            names = ", ".join(recipes) or "none"
            raise RegistrationError(f"{path}: RECIPES names {names}. Name one function, as in {path}:build.")
        if not attribute:
            return path.stem, as_recipe(next(iter(recipes.values())), source=str(path))
        found = recipes.get(attribute, getattr(module, attribute, None))
        if found is None:
            functions = ", ".join(_functions_in(module))
            raise RegistrationError(
                f"{path}: has no {attribute}. {f'It has {functions}.' if functions else 'It defines no function.'}"
            )
        return path.stem, as_recipe(found, source=text)

    def _add(self, module: ModuleType, *, source: str, with_recipes: bool = True) -> None:
        for name, value in _recipes_in(module).items() if with_recipes else ():
            self.recipes.add(name, as_recipe(value, source=f"{source}.RECIPES[{name!r}]"), source=source)
        self.accepted.add(module.__name__.partition(".")[0])
        self.classes.add(_dataclasses_in(module))
        if rules := tuple(vars(module).get("RULES", ())):
            self.rules_by_package[source] = rules


def _module_of_file(path: Path) -> ModuleType:
    """Run a Python file as the module of its name; its folder is searched for the modules that it imports."""
    name, folder = path.stem, str(path.parent.absolute())
    loaded = sys.modules.get(name)
    if loaded is not None:
        if getattr(loaded, "__file__", None) == str(path.absolute()):
            return loaded
        raise RegistrationError(f"{path}: a module named {name} is imported already. Rename the file.")
    spec = spec_from_file_location(name, path.absolute())
    if spec is None or spec.loader is None or not path.is_file():
        raise RegistrationError(f"{path}: no such file.")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise RegistrationError(f"{path}: cannot be run ({_reason(error)}).") from error
    return module


def _recipes_in(module: ModuleType) -> Mapping[str, object]:
    recipes: Mapping[str, object] = vars(module).get("RECIPES", {})
    return recipes


def _functions_in(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]


def _dataclasses_in(module: ModuleType) -> list[type]:
    """Return the dataclasses that a module or another one of its distribution defines and that it names."""
    package = module.__name__.partition(".")[0]
    classes = (value for value in vars(module).values() if isinstance(value, type) and is_dataclass(value))
    return [cls for cls in classes if cls.__module__.partition(".")[0] == package]


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:
        raise RegistrationError(f"{_described(point)}: cannot be loaded ({_reason(error)}).") from error


def _described(point: EntryPoint) -> str:
    owner = f" of {point.dist.name}" if point.dist is not None else ""
    return f"entry point {point.name} = {point.value}{owner}"


def _reason(error: Exception) -> str:
    """Return an error with the line of the user's code that raised it."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen ")
    ]
    where = f" in {frames[-1].filename}:{frames[-1].lineno}" if len(frames) > 1 else ""
    return f"{type(error).__name__}: {error}{where}"
