"""Public names that are imported when they are first used (PEP 562).

A name whose optional dependency is not installed raises the exception that Python expects at that position: an
AttributeError for `package.name` and `hasattr`, an ImportError for `from package import name`. Both carry the same
message, which names the extra. A star import leaves such names out.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any


class MissingExtraError(ImportError):
    """An imported name needs an optional dependency that is not installed."""


class MissingExtraAttributeError(AttributeError):
    """An attribute of a package needs an optional dependency that is not installed."""


def resolve(package: str, homes: Mapping[str, str], name: str) -> object:
    """Return a public name; for the `__getattr__` of a package, which calls this function directly.

    Args:
        package: name of the package.
        homes: public name to the module that defines it: one of the package, or of mb_schema.
        name: the requested attribute. `__all__` is the list of names that can be imported here, and `__version__` the
            version of the installed distribution.

    Raises:
        AttributeError: there is no such name, or an attribute needs a dependency that is not installed.
        MissingExtraError: the same of a name in `from package import name`.
    """
    if name == "__all__":
        return list(_importable(package, homes))
    if name == "__version__":
        return _metadata().version(package.replace("_", "-"))
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_module(package, homes[name])), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", package):
            raise
        message = (
            f"{package}.{name}: needs {missing}, which is not installed. "
            f"Install it: pip install {_requirement(package.replace('_', '-'), missing)}"
        )
        # `from package import name` requests the attribute in this function of the import system
        if sys._getframe(2).f_code.co_name == "_handle_fromlist":
            raise MissingExtraError(message, name=missing) from error
        raise MissingExtraAttributeError(message) from error


def public_names(namespace: Mapping[str, object], homes: Mapping[str, str]) -> list[str]:
    """Return what `dir(package)` lists: the public names, imported or not, and the module's own attributes."""
    return sorted({*namespace, *homes})


def _module(package: str, home: str) -> str:
    return home if home.startswith("mb_schema.") else f"{package}.{home}"


def _importable(package: str, homes: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(homes):
        try:
            resolve(package, homes, name)
        except MissingExtraAttributeError:
            continue
        yield name


def _requirement(distribution: str, missing: str) -> str:
    """Return what installs a missing module: the package with an extra, or the module's own distribution."""
    metadata = _metadata()
    try:
        lines = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        lines = []
    word = missing.replace("_", "-")
    extras = [
        re.findall(r"extra == ['\"]([^'\"]+)", line)
        for line in lines
        if word in re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0].replace("_", "-")
    ]
    named = [extra for found in extras for extra in found]
    if not named:
        return distribution if extras else word
    return f'"{distribution}[{word if word in named else named[0]}]"'


def _metadata() -> Any:
    return import_module("importlib.metadata")  # not at the top: it takes longer than the package itself
