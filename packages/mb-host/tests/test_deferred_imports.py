"""Import of packages at their first use."""

import sys

import pytest

from mb_host.deferred_imports import defer_import


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that counts its imports in a file."""
    (tmp_path / "late_package").mkdir()
    log = tmp_path / "log"
    code = f"with open({str(log)!r}, 'a') as stream:\n    stream.write('x')\nVALUE = 3\n"
    (tmp_path / "late_package" / "__init__.py").write_text(code)
    (tmp_path / "late_package" / "part.py").write_text("NUMBER = 4\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda: len(log.read_text()) if log.exists() else 0
    for name in [name for name in sys.modules if name.startswith("late_package")]:
        del sys.modules[name]


def test_the_first_attribute_loads_it_once(package):
    assert (defer_import("late_package"), package()) == (True, 0)
    import late_package

    assert (late_package.VALUE, late_package.VALUE, package()) == (3, 3, 1)
    assert sys.modules["late_package"] is late_package


def test_parts_and_names_can_be_imported(package):
    defer_import("late_package")
    import late_package

    assert (late_package.__name__, package()) == ("late_package", 0)
    from late_package import VALUE
    from late_package.part import NUMBER

    assert (NUMBER, VALUE, package()) == (4, 3, 1)


def test_a_missing_attribute_is_an_attribute_error(package):
    defer_import("late_package")
    with pytest.raises(AttributeError, match="NOTHING"):
        sys.modules["late_package"].NOTHING  # noqa: B018
    assert package() == 1


def test_imported_and_missing_packages_are_not_deferred(package):
    import late_package  # noqa: F401

    assert (defer_import("late_package"), defer_import("package_that_is_missing")) == (False, False)
