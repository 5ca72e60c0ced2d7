"""What an older Python refuses, seen on the newest; `nox -s imports` imports everything on each."""

import ast

import pytest
from house import PACKAGES

MAPPINGS = {"Mapping", "MutableMapping", "dict", "MappingProxyType"}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.module)
def test_no_field_has_a_mapping_as_its_default(package):
    """Dataclasses of Python 3.11 refuse unhashable defaults; read-only mappings are hashable from 3.12 on."""
    found = [
        f"{file.name}: {each.name}.{ast.unparse(field.target)}"
        for file in package.source.rglob("*.py")
        for each in ast.walk(ast.parse(file.read_text()))
        if isinstance(each, ast.ClassDef) and any("dataclass" in ast.unparse(d) for d in each.decorator_list)
        for field in each.body
        if isinstance(field, ast.AnnAssign) and is_default_mapping(field)
    ]
    assert found == []


def is_default_mapping(field):
    annotation = ast.unparse(field.annotation).partition("[")[0]
    is_literal = field.value is None or isinstance(field.value, (ast.Constant, ast.Lambda))
    is_factory = isinstance(field.value, ast.Call) and ast.unparse(field.value.func) == "field"
    return annotation in MAPPINGS and not is_literal and not is_factory


def test_the_check_finds_one():
    [field] = ast.parse("fallback: Mapping[str, object] = NOTHING").body
    assert is_default_mapping(field)
