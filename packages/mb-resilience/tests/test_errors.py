import ast
from pathlib import Path

from mb_resilience import errors

SOURCES = sorted(Path(errors.__file__).parent.glob("*.py"))


def test_every_error_has_the_base_class_and_a_builtin_one():
    found = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and value.__module__ == errors.__name__
    ]
    for kind in set(found) - {errors.ResilienceError}:
        assert issubclass(kind, errors.ResilienceError)
        assert issubclass(kind, OSError | RuntimeError | ValueError)
        assert kind.bad_input is False


def test_errors_are_defined_in_one_module():
    defined = [
        f"{path.stem}.{node.name}"
        for path in SOURCES
        if path.stem != "errors"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and node.name.endswith("Error")
    ]
    assert defined == []
