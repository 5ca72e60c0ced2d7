"""The trainer imports packages by their roots and by `mb_x.trainer_api`: what it needs beyond the public names.

The version ranges of the packages in the trainer's pyproject.toml hold for both.
"""

import ast
import importlib
import json
from pathlib import Path

import pytest
from house import PACKAGES

import mb_trainer

GOLDEN = json.loads((Path(__file__).parent / "public_names.json").read_text())
ROOTS = sorted({package.module for package in PACKAGES} - {"mb_schema"})
APIS = [f"{root}.trainer_api" for root in ROOTS if f"{root}.trainer_api" in GOLDEN]
TREES = {file: ast.parse(file.read_text()) for file in Path(mb_trainer.__file__).parent.rglob("*.py")}


def imported_names(tree: ast.AST) -> set[tuple[str, str]]:
    """Return module and name of each `from module import name`, and each `import module` with an empty name."""
    return {
        (node.module or "", alias.name) if isinstance(node, ast.ImportFrom) else (alias.name, "")
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def read_attributes(tree: ast.AST) -> set[tuple[str, str]]:
    """Return module and name of each `module.name`."""
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {(ast.unparse(node.value), node.attr) for node in attributes}


def test_the_trainer_imports_nothing_below_the_roots():
    below = {
        f"{file.name}: {module}"
        for file, tree in TREES.items()
        for module, _ in imported_names(tree)
        if module.partition(".")[0] in ROOTS and "." in module and not module.endswith(".trainer_api")
    }
    assert below == set()


@pytest.mark.parametrize("module", APIS)
def test_names_are_as_agreed(module):
    homes = importlib.import_module(module)._HOMES
    assert sorted(homes) == GOLDEN[module]
    assert homes.keys() & importlib.import_module(module.partition(".")[0])._HOMES.keys() == set()


@pytest.mark.parametrize("module", APIS)
def test_the_trainer_needs_each_name(module):
    used = {
        name
        for tree in TREES.values()
        for source, name in imported_names(tree) | read_attributes(tree)
        if source == module
    }
    assert used - {""} == {*GOLDEN[module]}


@pytest.mark.parametrize("module", APIS)
def test_each_name_exists(module):
    api = importlib.import_module(module)
    assert [name for name in GOLDEN[module] if not hasattr(api, name)] == []


def test_imports_of_every_form_are_found():
    source = "import mb_a.b\nfrom mb_a.c import d as e\ndef f():\n    from mb_a import g\n"
    assert imported_names(ast.parse(source)) == {("mb_a.b", ""), ("mb_a.c", "d"), ("mb_a", "g")}
