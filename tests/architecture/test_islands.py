"""The one rule: a package imports the standard library, what it declares, mb_schema, and itself."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from house import MODULE_TO_DISTRIBUTION, PACKAGES, Package


def imported_modules(path: Path) -> Iterator[str]:
    """Yield the top-level name of each absolute import in a file, at any depth."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


def strangers(package: Package, path: Path) -> set[str]:
    """Return what a file imports beyond the standard library, the declared dependencies and its package."""
    declared = package.declared()
    return {
        name
        for name in imported_modules(path)
        if name not in sys.stdlib_module_names
        and name != package.module
        and MODULE_TO_DISTRIBUTION.get(name, name.replace("_", "-")) not in declared
    }


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.module)
def test_a_package_imports_only_what_it_declares(package: Package):
    found = {str(path): strangers(package, path) for path in package.source.rglob("*.py")}
    assert {path: names for path, names in found.items() if names} == {}


ALLOWED = {*sys.stdlib_module_names, "mb_schema"}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.module)
def test_config_and_rules_import_only_the_standard_library(package: Package):
    patterns = ("config.py", "*_config.py", "rules.py", "*_rules.py", "rules/*.py")
    files = [path for pattern in patterns for path in package.source.rglob(pattern)]
    found = {str(path): {*imported_modules(path)} - ALLOWED - {package.module} for path in files}
    assert {path: names for path, names in found.items() if names} == {}


def test_a_planted_bridge_between_islands_is_found(tmp_path):
    planted = tmp_path / "planted.py"
    planted.write_text("def f():\n    import mb_loop\n    from mb_config.container.codec import to_dict\n")
    assert strangers(PACKAGES[0], planted) == {"mb_loop", "mb_config"}
