"""Base classes of the errors of packages, which the trainer maps to exit codes."""

from importlib import import_module
from importlib.util import find_spec

from mb_config import ConfigReadError, PlanError
from mb_trainer.commands.errors import PACKAGE_ERRORS, message_of

PACKAGES = (
    "checkpoint",
    "config",
    "data",
    "host",
    "launch",
    "loop",
    "metrics",
    "models",
    "overlap",
    "resilience",
    "verify",
)


def bases(package: str) -> set[type]:
    """Return the base classes in a package's `errors.py`: those that define `bad_input` as False."""
    name = f"mb_{package}.errors"
    found = vars(import_module(name)).values() if find_spec(name) is not None else ()
    classes = {each for each in found if isinstance(each, type) and vars(each).get("bad_input") is False}
    return {
        cls
        for cls in classes
        if cls.__module__ == name and not any(map(classes.__contains__, cls.__mro__[1:]))
    }


def test_each_base_class_is_mapped_to_exit_codes() -> None:
    assert set().union(*map(bases, PACKAGES)) == {*PACKAGE_ERRORS}


def test_bad_input_and_failures_have_different_exit_codes() -> None:
    assert message_of(ConfigReadError("cannot be read")) == ("cannot be read", 2)
    assert message_of(PlanError("has no plan")) == ("has no plan", 1)
    assert message_of(ZeroDivisionError()) is None
