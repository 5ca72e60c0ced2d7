"""Public names that are imported when they are first used (PEP 562).

A name whose optional dependency is not installed raises the exception that Python expects at that position: an
AttributeError for `package.name` and `hasattr`, an ImportError for `from package import name`. Both carry the same
message, which names the extra. A star import leaves such names out.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any


class MissingExtraError(ImportError):
    """An imported name needs an optional dependency that is not installed."""


class MissingExtraAttributeError(AttributeError):
    """An attribute of a package needs an optional dependency that is not installed."""


_IMPORT = re.compile(r"^    from (\S+) import \(?\s*(\w+) as \2\b", re.MULTILINE)
"""Indented statement that imports a name as itself, which is how type checkers recognize a public name."""

Attached = tuple[Mapping[str, str], Callable[[str], object], Callable[[], list[str]]]
"""Public name to the module that defines it, `__getattr__` and `__dir__`."""


def attach(module: str, file: str) -> Attached:
    """Return the lazy names of a module, its `__getattr__` and its `__dir__`.

    The names are those that the source imports under `if TYPE_CHECKING`, one in each statement
    (`from mb_x.y import Name as Name`): what a type checker reads is what is imported at run time. `__all__` is the
    list of names that can be imported here, and `__version__` the version of the installed distribution.

    Args:
        module: `__name__` of the module.
        file: its `__file__`, a source file.

    `__getattr__` raises:
        AttributeError: there is no such name.
        MissingExtraAttributeError: an attribute needs a dependency that is not installed.
        MissingExtraError: a name in `from package import name` does.
        PackageNotFoundError: `__version__` of a package that is not installed, but found on the path.
    """
    # not by pathlib, whose import takes longer than all of this
    with open(file, encoding="utf-8") as stream:  # noqa: PTH123
        modules = {name: defined_in for defined_in, name in _IMPORT.findall(stream.read())}

    def get_attribute(name: str) -> object:
        return _resolve(module, modules, name)

    return modules, get_attribute, lambda: sorted({*vars(sys.modules[module]), *modules})


def _resolve(module: str, modules: Mapping[str, str], name: str) -> object:
    """Return an attribute of a module. Only `__getattr__` may call this, because its own caller is inspected."""
    package = module.partition(".")[0]
    if name == "__all__":
        return list(_importable(module, modules))
    if name == "__version__":
        return _metadata().version(package.replace("_", "-"))
    if name not in modules:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    try:
        # as the statement does, which also finds a submodule
        return getattr(__import__(modules[name], fromlist=[name]), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", package):
            raise
        message = (
            f"{module}.{name}: needs {missing}, which is not installed. "
            f"Install it: pip install {_requirement(package.replace('_', '-'), missing)}"
        )
        # `from package import name` requests the attribute in this function of the import system
        if sys._getframe(2).f_code.co_name == "_handle_fromlist":
            raise MissingExtraError(message, name=missing) from error
        raise MissingExtraAttributeError(message) from error


def _importable(module: str, modules: Mapping[str, str]) -> Iterator[str]:
    """Yield the names whose dependencies are installed, which imports them."""
    for name in sorted(modules):
        try:
            _resolve(module, modules, name)
        except MissingExtraAttributeError:
            continue
        yield name


def _requirement(distribution: str, missing: str) -> str:
    """Return the argument of pip that installs a missing module: the package with an extra, or a distribution.

    A distribution is recognized by its name, of which that of the module is a part: megatron-core, pyyaml.
    """
    metadata = _metadata()
    try:
        lines = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        lines = []
    name = missing.replace("_", "-")
    extras_of_each = [
        re.findall(r"extra == ['\"]([^'\"]+)", line)
        for line in lines
        if name in re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0].replace("_", "-")
    ]
    extras = [extra for found in extras_of_each for extra in found]
    if not extras:  # a required dependency that is lacking, or one that is not declared
        return distribution if extras_of_each else name
    return f'"{distribution}[{name if name in extras else extras[0]}]"'


def _metadata() -> Any:
    return import_module("importlib.metadata")  # not at the top: it takes longer than the package itself
