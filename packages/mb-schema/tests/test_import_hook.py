"""Import hook that calls functions before and after the code of a module."""

import sys
from importlib.util import find_spec

import pytest

from mb_schema.import_hook import ImportHook


@pytest.fixture
def finder(tmp_path, monkeypatch):
    """Return a function that installs a finder for this test."""
    (tmp_path / "fresh_module.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "fresh_module", raising=False)

    def install(callbacks):
        monkeypatch.setattr(sys, "meta_path", [ImportHook(after=callbacks), *sys.meta_path])

    return install


def test_the_callback_runs_before_the_importer_continues(finder):
    finder({"fresh_module": lambda module: setattr(module, "VALUE", 2)})
    from fresh_module import VALUE

    assert VALUE == 2


def test_two_hooks_on_one_module_are_both_called(finder):
    finder({"fresh_module": lambda module: setattr(module, "VALUE", 2)})
    finder({"fresh_module": lambda module: setattr(module, "OTHER", 3)})
    from fresh_module import OTHER, VALUE

    assert (VALUE, OTHER) == (2, 3)


def test_other_modules_and_missing_ones_are_unaffected(finder):
    finder({"fresh_module_that_is_not_there": lambda module: None})
    import fresh_module

    assert fresh_module.VALUE == 1
    with pytest.raises(ModuleNotFoundError, match="fresh_module_that_is_not_there"):
        import fresh_module_that_is_not_there  # noqa: F401


def test_before_runs_while_the_module_is_not_there_and_not_when_it_is_searched(monkeypatch, finder):
    present = []
    finder({})
    hook = ImportHook(before={"fresh_module": lambda: present.append("fresh_module" in sys.modules)})
    monkeypatch.setattr(sys, "meta_path", [hook, *sys.meta_path])
    assert find_spec("fresh_module") is not None
    assert present == []
    import fresh_module  # noqa: F401

    assert present == [False]
