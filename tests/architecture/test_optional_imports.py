"""Tests of a package without what its extras install: they are also run where only its wheel is installed."""

import ast
import re
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import tomllib

PACKAGES = Path(__file__).parents[2] / "packages"
SUPPORT = {"torch", "megatron", "mb_host", "mb_guard"}
"""Modules that every package but those which declare them does without in some check."""


def distribution_name(specification: str) -> str:
    """Return the normalized name of the distribution in a requirement."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", specification)[0]).lower()


@cache
def optional_modules(package: Path) -> set[str]:
    """Return the modules that are there with an extra of a package only."""
    parsed = tomllib.loads((package / "pyproject.toml").read_text())
    extras = parsed["project"].get("optional-dependencies", {}).values()
    optional = {distribution_name(spec) for extra in extras for spec in extra}
    required = {
        distribution_name(spec)
        for spec in [*parsed["project"].get("dependencies", ()), *parsed["dependency-groups"]["test"]]
        if distribution_name(spec) not in {"mb-host", "mb-guard"}
    }
    found = {
        module
        for module, distributions in packages_distributions().items()
        if {distribution_name(each) for each in distributions} & (optional - required)
    }
    needed = {"torch"} if required & {"torch"} else set()
    megatron = {"megatron"} if "megatron-core" in required else set()
    own = {package.name.replace("-", "_")}
    return (found | SUPPORT) - needed - megatron - own


TESTS = [
    module
    for package in sorted(PACKAGES.iterdir())
    if (package / "pyproject.toml").exists()
    and package.name != "mb-models"  # has no check without its extras
    for module in sorted((package / "tests").glob("test_*.py"))
]


def unguarded_imports(text: str, optional: set[str]) -> list[str]:
    """Return the optional modules that a test module imports before it calls ``importorskip``."""
    found = []
    for node in ast.parse(text).body:
        if "importorskip" in ast.unparse(node):
            break
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        found += [name for name in names if name.split(".")[0] in optional]
    return found


@pytest.mark.parametrize("module", TESTS, ids=lambda path: f"{path.parts[-3]}/{path.name}")
def test_optional_modules_are_imported_with_importorskip(module: Path):
    assert unguarded_imports(module.read_text(), optional_modules(module.parents[1])) == []


def test_an_unguarded_import_is_found():
    assert unguarded_imports("import torch\n", SUPPORT) == ["torch"]
    assert unguarded_imports("from megatron.core import x\n", SUPPORT) == ["megatron.core"]
    assert unguarded_imports('torch = pytest.importorskip("torch")\nfrom torch import nn\n', SUPPORT) == []


def test_modules_of_an_extra_are_optional():
    assert "yaml" in optional_modules(PACKAGES / "mb-data")
    assert "torch" not in optional_modules(PACKAGES / "mb-data")
    assert "yaml" not in optional_modules(PACKAGES / "mb-config")
