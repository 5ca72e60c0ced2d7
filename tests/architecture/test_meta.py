"""The trainer is thin: its lines without recipes and names of Megatron-Bridge, and the length of its functions."""

import ast
from pathlib import Path

import mb_trainer

MAX_LINES = 3_000
MAX_FUNCTION_LINES = 50
"""Lines of a function without its docstring."""
COUNTED_APART = ("recipes", "bridge")
SOURCE = Path(mb_trainer.__file__).parent
FILES = sorted(
    file for file in SOURCE.rglob("*.py") if file.relative_to(SOURCE).parts[0] not in COUNTED_APART
)


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without those of its docstring."""
    first = function.body[0]
    documented = ast.get_docstring(function) is not None
    docstring = first.end_lineno - first.lineno + 1 if documented else 0
    return function.end_lineno - function.lineno + 1 - docstring


def test_meta_is_thin():
    lines = {file: len(file.read_text().splitlines()) for file in FILES}
    assert sum(lines.values()) <= MAX_LINES, lines


def test_its_functions_are_short():
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    long = [
        f"{file.name}: {each.name}"
        for file in FILES
        for each in ast.walk(ast.parse(file.read_text()))
        if isinstance(each, kinds) and lines_of(each) > MAX_FUNCTION_LINES
    ]
    assert not long
