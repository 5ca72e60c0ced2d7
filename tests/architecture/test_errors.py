"""Errors of the packages: each public class derives from the one base class of its package."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from house import PACKAGES, Package

from mb_schema.errors import PackageError

SEVERAL_CAUSES = {
    "mb_checkpoint": {"RanksFailedError", "RankZeroTimeoutError"},  # of any kind, on another rank
    "mb_schema": {
        *(
            "FieldTypeError",
            "FileNameError",
            "MismatchError",
            "MissingExtraAttributeError",
            "MissingExtraError",
        ),
        *("PackageError", "RuleError", "UnknownFieldError", "UnknownGpuError"),
    },  # packages derive their own from these, together with their base class
}
WITHOUT_BASE = {"mb_host"}
"""Packages of which a trainer catches no error."""


def error_classes(source: Path) -> Iterator[tuple[str, str]]:
    """Yield module and name of each public error class of a package, without importing the modules."""
    for file in sorted(source.rglob("*.py")):
        parts = [part for part in file.relative_to(source.parent).with_suffix("").parts if part != "__init__"]
        for node in ast.parse(file.read_text()).body:
            if (
                isinstance(node, ast.ClassDef)
                and node.name.endswith("Error")
                and not node.name.startswith("_")
            ):
                yield ".".join(parts), node.name


@pytest.mark.parametrize(
    "package", [each for each in PACKAGES if each.module not in WITHOUT_BASE], ids=lambda each: each.module
)
def test_every_public_error_derives_from_the_base(package: Package):
    found = {name: getattr(import_module(module), name) for module, name in error_classes(package.source)}
    bases = [each for each in found.values() if PackageError in each.__bases__]
    assert len(bases) == (package.module != "mb_schema")
    others = {name for name, error in found.items() if not issubclass(error, tuple(bases))}
    assert others == SEVERAL_CAUSES.get(package.module, set())
