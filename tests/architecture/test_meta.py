"""The trainer wires the packages: rules are defined in the package of their section."""

import ast

from house import SOURCES

META = SOURCES[-1]


def test_meta_defines_no_rule():
    rules = [
        f"{file.relative_to(META)}:{node.lineno}"
        for file in META.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Rule"
    ]
    assert not rules
