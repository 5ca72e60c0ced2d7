"""References to functions, which another process resolves without having imported their module."""

import functools
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

# multiprocessing's name for the main script's module in a child process.
_MAIN_IN_CHILD = "__mp_main__"


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionReference:
    """Reference to a module-level function: module, qualified name, and file of the module (None: built-in)."""

    module: str
    name: str
    file: str | None

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


def reference_to(function: Callable[..., Any]) -> FunctionReference:
    """Return a reference to `function`.

    Raises:
        TypeError: `function` is not an attribute of its module, or the module has no file (a lambda, a nested function,
            a partial, or a function defined at a prompt).
    """
    module_name = getattr(function, "__module__", None) or ""
    name = getattr(function, "__qualname__", "")
    module = sys.modules.get(module_name)
    file = getattr(module, "__file__", None)
    if (
        module is None
        or _resolve_name(module, name) is not function
        or (module_name == "__main__" and file is None)
    ):
        raise TypeError(
            f"run_ranks: fn must be a function at the top of a module's file (got {function!r}), because every rank "
            "imports it by file and name. Move it there, and pass captured values as arguments."
        )
    return FunctionReference(module=module_name, name=name, file=file and str(Path(file).resolve()))


def function_in(file: str | Path, name: str) -> FunctionReference:
    """Return a reference to the function `name` of the Python file `file`, which only the ranks import.

    For functions whose module imports Megatron, which the launcher does not need to import.

    Raises:
        FileNotFoundError: The file does not exist.
    """
    path = Path(file).resolve()
    if not path.is_file():
        raise FileNotFoundError(
            f"function_in.file: {path} does not exist, so no rank can import {name} from it. Pass a Python file."
        )
    return FunctionReference(module=path.stem, name=name, file=str(path))


def load(reference: FunctionReference) -> Callable[..., Any]:
    """Return the function; import its module by name if that finds the same file, else by file.

    The module has the same name as in the other process, so that objects of its classes can be pickled both ways.

    Raises:
        AttributeError: The file does not define that function.
    """
    module = _loaded(reference) or _imported(reference) or _executed(reference)
    return functools.reduce(getattr, reference.name.split("."), module)  # type: ignore[return-value]


def _resolve_name(module: ModuleType, name: str) -> object:
    value: object = module
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


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
    except (ImportError, ValueError):  # the parent does not exist or is not a package
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
            "file. Move the function into one."
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if is_main:
        sys.modules["__main__"] = module
        module.__spec__ = None  # as in a script: child processes of the rank then import by file, not by name
    spec.loader.exec_module(module)
    return module
