"""Tests of packages without torch: they are also run where torch is not installed."""

import ast
from pathlib import Path

import pytest
import tomllib

PACKAGES = Path(__file__).parents[2] / "packages"
OPTIONAL = {"torch", "megatron", "mb_host"}


def requires_torch(package: Path) -> bool:
    """Return whether the wheel of a package depends on torch without an extra."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    return any(line.startswith(("torch", "mb-host")) for line in project.get("dependencies", ()))


LIGHT_TESTS = [
    module
    for package in sorted(PACKAGES.iterdir())
    if (package / "pyproject.toml").exists() and not requires_torch(package)
    for module in sorted((package / "tests").glob("test_*.py"))
]


def unguarded_imports(text: str) -> list[str]:
    """Return the optional modules that a test module imports before it calls ``importorskip``."""
    found = []
    for node in ast.parse(text).body:
        if "importorskip" in ast.unparse(node):
            break
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        found += [name for name in names if name.split(".")[0] in OPTIONAL]
    return found


@pytest.mark.parametrize("module", LIGHT_TESTS, ids=lambda path: f"{path.parts[-3]}/{path.name}")
def test_optional_modules_are_imported_with_importorskip(module: Path):
    assert unguarded_imports(module.read_text()) == []


def test_an_unguarded_import_is_found():
    assert unguarded_imports("import torch\n") == ["torch"]
    assert unguarded_imports("from megatron.core import x\n") == ["megatron.core"]
    assert unguarded_imports('torch = pytest.importorskip("torch")\nfrom torch import nn\n') == []
