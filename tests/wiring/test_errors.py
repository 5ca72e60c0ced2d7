"""Base classes of the errors of packages, which the trainer maps to exit codes."""

from importlib import import_module
from importlib.util import find_spec

import pytest

from mb_config import ConfigReadError
from mb_config.cli.listing import message_of
from mb_loop import LossShapeError, UnknownEventError
from mb_loop.errors import ParallelSetupError
from mb_loop.step.schedule import ScheduleError
from mb_models.errors import ModelConfigError
from mb_models.gpt.value_head import HeadError
from mb_models.training.freezing import FreezingError
from mb_plan import PlanError
from mb_resilience.errors import StopOrderError, StopSetupError
from mb_schema.errors import PackageError
from mb_trainer.commands.errors import reported
from mb_trainer.errors import TrainerError

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
    """Return the base classes in a package's `errors.py`."""
    name = f"mb_{package}.errors"
    found = vars(import_module(name)).values() if find_spec(name) is not None else ()
    return {each for each in found if isinstance(each, type) and PackageError in each.__bases__}


def test_each_base_class_is_mapped_to_exit_codes() -> None:
    found = {package: bases(package) for package in PACKAGES}
    assert {package for package, classes in found.items() if len(classes) != 1} <= {"host"}
    for base in (TrainerError, *set().union(*found.values())):
        error: object = base()
        assert isinstance(error, PackageError), base


def test_bad_input_and_failures_have_different_exit_codes() -> None:
    assert message_of(ConfigReadError("cannot be read")) == ("cannot be read", 2)
    assert message_of(PlanError("has no plan")) == ("has no plan", 1)
    assert message_of(ModelConfigError(["model: continues no text"])) == ("model: continues no text", 1)
    assert message_of(ZeroDivisionError()) is None


@pytest.mark.parametrize(
    "kind",
    [
        *(LossShapeError, ParallelSetupError, ScheduleError, UnknownEventError),
        *(FreezingError, HeadError, StopOrderError, StopSetupError),
    ],
)
def test_mistakes_in_calling_code_keep_their_traceback(kind: type[Exception]) -> None:
    def work() -> int:
        raise kind("is used wrongly")

    with pytest.raises(kind):
        reported(work, environment={})
