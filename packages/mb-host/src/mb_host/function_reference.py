"""Name a function in one process, and find it again in another that never imported its module."""

import functools
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

# As multiprocessing calls the module that was run as a script, when a child imports it.
_MAIN_IN_CHILD = "__mp_main__"


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionReference:
    """A module-level function: its module's name, its qualified name, and its module's file (None: built in)."""

    module: str
    name: str
    file: str | None

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


def reference_to(function: Callable[..., Any]) -> FunctionReference:
    """Return a reference to `function`.

    Raises:
        TypeError: `function` is not found under its name in its module, or the module has no file (a lambda, a
            function inside a function, a partial, something typed at a prompt).
    """
    module_name = getattr(function, "__module__", None) or ""
    name = getattr(function, "__qualname__", "")
    module = sys.modules.get(module_name)
    file = getattr(module, "__file__", None)
    if (
        module is None
        or _look_up(module, name) is not function
        or (module_name == "__main__" and file is None)
    ):
        raise TypeError(
            f"run_ranks: fn must be a function at the top of a module's file (got {function!r}), because every rank "
            "imports it by file and name; move it there, and pass what it closes over as arguments."
        )
    return FunctionReference(module=module_name, name=name, file=file and str(Path(file).resolve()))


def function_in(file: str | Path, name: str) -> FunctionReference:
    """Return a reference to the function `name` of the Python file `file`, which only the ranks will import.

    For functions whose module imports Megatron, which the launching process need not do.

    Raises:
        FileNotFoundError: There is no such file.
    """
    path = Path(file).resolve()
    if not path.is_file():
        raise FileNotFoundError(
            f"function_in.file: {path} is not there, so no rank could import {name} from it; give a Python file."
        )
    return FunctionReference(module=path.stem, name=name, file=str(path))


def load(reference: FunctionReference) -> Callable[..., Any]:
    """Return the function, importing its module by name if that finds the same file, else by its file.

    The module gets its name in the other process, so that objects of its classes can be pickled both ways.

    Raises:
        AttributeError: The file no longer has that function.
    """
    module = _loaded(reference) or _imported(reference) or _executed(reference)
    return functools.reduce(getattr, reference.name.split("."), module)  # type: ignore[return-value]


def _look_up(module: ModuleType, name: str) -> object:
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _loaded(reference: FunctionReference) -> ModuleType | None:
    name = _MAIN_IN_CHILD if reference.module == "__main__" else reference.module
    module = sys.modules.get(name)
    return module if getattr(module, "__file__", None) or reference.file is None else None


def _imported(reference: FunctionReference) -> ModuleType | None:
    if reference.file is None:
        return import_module(reference.module)
    if reference.module == "__main__":
        return None
    try:
        spec = importlib.util.find_spec(reference.module)
    except (ImportError, ValueError):  # no such parent, or a parent that is no package
        return None
    if spec is None or spec.origin is None or str(Path(spec.origin).resolve()) != reference.file:
        return None
    return import_module(reference.module)


def _executed(reference: FunctionReference) -> ModuleType:
    is_main = reference.module == "__main__"
    name = _MAIN_IN_CHILD if is_main else reference.module
    spec = importlib.util.spec_from_file_location(name, reference.file)
    if spec is None or spec.loader is None:
        raise ImportError(
            f"run_ranks: {reference} cannot be loaded from {reference.file}, because that is not a Python source "
            "file; move the function into one."
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if is_main:
        sys.modules["__main__"] = module
        module.__spec__ = None  # as of a script: what the rank spawns looks for its file, not for that name
    spec.loader.exec_module(module)
    return module
