"""Modules of `megatron.bridge` under `mb_trainer.bridge`.

A recipe written for Megatron-Bridge moves by replacing `megatron.bridge` with `mb_trainer.bridge` in its imports. Each
module of theirs is made when it is imported: `names.txt` lists where its names are in the packages of this trainer.
The import of another name raises an error with its replacement, or with the reason why there is none (`missing.txt`).
"""

import json
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

Error = TypeVar("Error", ImportError, AttributeError)
_FOLDER = Path(__file__).parent
_BASE = f"{__name__}."


@cache
def names() -> Mapping[str, Mapping[str, str]]:
    """Return where the names of Megatron-Bridge are here: module below `megatron.bridge` -> name -> module:name."""
    homes_by_module: dict[str, dict[str, str]] = {"": {}}
    for line in (_FOLDER / "names.txt").read_text(encoding="utf-8").splitlines():
        head, _, listed = line.partition(": ")
        module, home = head.split()
        pairs = (name.partition("=") for name in listed.split())  # NAME=OTHER where the name differs here
        homes = {name: f"{home}:{other or name}" for name, _, other in pairs}
        homes_by_module.setdefault("" if module == "." else module, {}).update(homes)
    for module, recipes in _recipe_modules().items():
        homes_by_module.setdefault(module, {}).update(
            (name, f"mb_trainer.bridge.recipe_table:{recipe}") for name, recipe in recipes.items()
        )
    for module in [*homes_by_module]:
        parts = module.split(".")
        for length in range(1, len(parts)):
            homes_by_module.setdefault(".".join(parts[:length]), {})
    return homes_by_module


@cache
def written_recipes() -> Mapping[str, Any]:
    """Return the content of recipes.json: recipes by module, and further names of recipes by module."""
    content: Mapping[str, Any] = json.loads((_FOLDER / "recipes.json").read_text(encoding="utf-8"))
    return content


def _recipe_modules() -> Mapping[str, Mapping[str, str]]:
    """Return the recipes of recipes.json: module below `megatron.bridge` -> name -> name of the recipe.

    A package has the recipes of its modules.
    """
    content = written_recipes()
    modules = {module: {name: name for name in entries} for module, entries in content["recipes"].items()}
    found: dict[str, dict[str, str]] = {}
    for module, listed in [*modules.items(), *content["aliases"].items()]:
        parts = ["recipes", *module.split(".")]
        for length in range(1, len(parts) + 1):
            found.setdefault(".".join(parts[:length]), {}).update(listed)
    return found


@cache
def missing() -> Sequence[tuple[str, str]]:
    """Return what is not here: a pattern of names below `megatron.bridge`, and what to use, or why it is missing."""
    lines = (_FOLDER / "missing.txt").read_text(encoding="utf-8").splitlines()
    return [(pattern, text) for pattern, _, text in (line.partition(" ") for line in lines) if text]


def answer(name: str) -> str | None:
    """Return what replaces a missing module or name below `megatron.bridge`, or why nothing does; None if unknown."""
    return next((text for pattern, text in missing() if fnmatchcase(name, pattern)), None)


def not_here(name: str, text: str, *, kind: type[Error]) -> Error:
    """Return the error for a name of Megatron-Bridge that is not here, with what is in its place or the reason."""
    return kind(f"{name}: not in this trainer. {text}")


def missing_member(owner: object, name: str, text: str) -> AttributeError:
    """Return the error for a member that an object of this trainer does not have."""
    error = not_here(f"{type(owner).__name__}.{name}", text, kind=AttributeError)
    error.name, error.obj = name, owner
    return error


def _missing_error(name: str, kind: type[Error]) -> Error:
    """Return the error, with its answer, for a module or name that is not here."""
    text = answer(name) or "Megatron-Bridge 0.6.2 has no such name either."
    error = not_here(f"{_BASE}{name}", text, kind=kind)
    # `from package import name` swallows a ModuleNotFoundError whose `name` is package.name, and raises an error
    # without the answer: so an error with an answer has another name.
    error.name = f"{_BASE}{name}" if answer(name) is None else "megatron.bridge"
    return error


class _Finder:
    """Finder and loader of modules that have no file. Python calls it after all other finders."""

    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None = None, _target: object = None) -> ModuleSpec | None:
        """Return the module of a path in `names()`.

        Raises:
            ModuleNotFoundError: a module of Megatron-Bridge that is missing here.
        """
        if not name.startswith(_BASE):
            return None
        if name.removeprefix(_BASE) not in names():
            raise _missing_error(name.removeprefix(_BASE), ModuleNotFoundError)
        return ModuleSpec(name, cast("Loader", _Finder), is_package=True)

    @staticmethod
    def create_module(_spec: ModuleSpec) -> None:
        """Create the module as Python does."""

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Give a module its names."""
        path = module.__name__.removeprefix(_BASE)
        module.__doc__ = f"Names of `megatron.bridge.{path}`."
        vars(module).update(
            __all__=sorted(names()[path]),
            __dir__=lambda: sorted(names()[path]),
            __getattr__=lambda name: _find(path, name),
        )


def _find(module: str, name: str) -> object:
    """Return a name of a module below `megatron.bridge`: an object of this trainer, or a module.

    Raises:
        AttributeError: There is none; with the answer, if there is one.
    """
    home = names()[module].get(name)
    if home is not None:
        home, _, other = home.partition(":")
        return getattr(import_module(home), other)
    path = f"{module}.{name}" if module else name
    if path in names():
        return import_module(f"{_BASE}{path}")
    if not name.startswith("__") and answer(path) is not None:
        raise _missing_error(path, AttributeError)
    raise AttributeError(
        f"module {__name__ + '.' + module if module else __name__!r} has no attribute {name!r}"
    )


def __getattr__(name: str) -> object:
    return _find("", name)


def __dir__() -> list[str]:
    return sorted({*names()[""], *(path for path in names() if path and "." not in path)})


sys.meta_path.append(_Finder)
