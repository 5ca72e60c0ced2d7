"""No module imports itself through others: in a function, by a name as text and for type checkers included."""

import ast
import importlib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest
from house import PACKAGES

NAMES = ["mb_trainer", *(package.module for package in PACKAGES)]
COMMANDS = ("command", "implementation")
"""Functions of the trainer's command line that import a module of `mb_trainer.commands` by its name."""


def imported_texts(source: str) -> Iterator[str]:
    """Yield the names of modules that calls in a source import as text."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
            continue
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if function == "import_module":
            yield str(node.args[0].value)
        elif function in COMMANDS:
            yield f"mb_trainer.commands.{node.args[0].value}"


SECTIONS_THAT_INSTALL = {"mb_models.peft.config"}
"""Sections with methods, by their seeds, that load their implementation, whose parameters have the section's type."""


def module_graph() -> dict[str, set[str]]:
    """Return the modules that each module imports."""
    graph = grimp.build_graph(*NAMES, cache_dir=None)
    running = grimp.build_graph(*NAMES, exclude_type_checking_imports=True, cache_dir=None)
    imports = {
        module: graph.find_modules_directly_imported_by(module) - SECTIONS_THAT_INSTALL
        | running.find_modules_directly_imported_by(module)
        for module in graph.modules
    }
    for name in NAMES:
        root = Path(str(importlib.import_module(name).__file__)).parent
        for file in root.rglob("*.py"):
            parts = file.relative_to(root.parent).with_suffix("").parts
            module = ".".join(parts).removesuffix(".__init__")
            imports[module] |= {text for text in imported_texts(file.read_text()) if text in imports}
    return imports


def test_imports_have_no_circle():
    TopologicalSorter(module_graph()).prepare()


def test_a_circle_is_found():
    assert [*imported_texts('import_module("a.b")\ncommand("plan")\nprint("x")\n')] == [
        "a.b",
        "mb_trainer.commands.plan",
    ]
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()
