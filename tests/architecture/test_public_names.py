"""The public names of each package, held by a golden file: adding or losing one is a decision."""

import ast
import importlib
import json
from pathlib import Path

import pytest
from house import PACKAGES, Package

GOLDEN = json.loads((Path(__file__).parent / "public_names.json").read_text())


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.module)
def test_public_names_are_as_agreed(package: Package):
    assert sorted(importlib.import_module(package.module)._HOMES) == GOLDEN[package.module]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.module)
def test_public_names_are_those_that_a_type_checker_reads(package: Package):
    source = (package.source / "__init__.py").read_text()
    [block] = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    imported = [
        (alias.name, alias.asname, node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert len(imported) == len(block.body)
    homes = importlib.import_module(package.module)._HOMES
    assert [(name, name, home) for name, home in homes.items()] == imported


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.module)
def test_every_public_name_resolves(package: Package):
    module = importlib.import_module(package.module)
    assert [name for name in module._HOMES if not hasattr(module, name)] == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.module)
def test_an_unknown_name_is_an_attribute_error(package: Package):
    with pytest.raises(AttributeError, match="no_such_name"):
        importlib.import_module(package.module).no_such_name  # noqa: B018


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.module)
def test_no_public_name_is_hidden_by_a_submodule(package: Package):
    files = {path.stem for path in package.source.iterdir()}
    assert files & {*importlib.import_module(package.module)._HOMES} == set()
