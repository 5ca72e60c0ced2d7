"""Custom checkpoint managers by dotted name."""

import pytest

pytest.importorskip("megatron.core", reason="needs the mcore extra")

from mb_checkpoint import CheckpointConfig, DefaultCheckpointManager, create_checkpoint_manager
from mb_checkpoint.context import CheckpointManager, CheckpointProbe
from mb_checkpoint.errors import CheckpointConfigError


class Own:
    """Store that is not a folder."""

    def __init__(self, checkpoint_config):
        self.config = checkpoint_config
        self.calls = []

    def save(self, ctx, callback_manager=None):
        self.calls.append("save")

    def load(self, ctx):
        self.calls.append("load")
        return 7, 3.0

    def finalize_async_saves(self, state=None, blocking=False, terminate=False):
        self.calls.append("finalize")

    def has_checkpoint(self):
        return True


class Documented:
    """Exactly the members of the documented protocol, every argument required."""

    def __init__(self, checkpoint_config):
        self.config = checkpoint_config

    def save(self, ctx, callback_manager):
        return None

    def load(self, ctx):
        return 0, 0

    def finalize_async_saves(self, state, blocking=False, terminate=False):
        return None


class WithoutLoad:
    """Lacks methods."""

    def __init__(self, checkpoint_config):
        self.save = lambda ctx, callback_manager: None


class OneArgument(Own):
    """Takes no callback manager."""

    def save(self, ctx):
        pass


@pytest.fixture
def here(monkeypatch, request):
    """Make this module importable as `own_managers`."""
    monkeypatch.setitem(__import__("sys").modules, "own_managers", request.module)


def section(name):
    return CheckpointConfig(custom_manager_class=name)


def test_without_a_name_the_default_one_is_made():
    pytest.importorskip("megatron.core")
    section = CheckpointConfig()
    manager = create_checkpoint_manager(section)
    assert isinstance(manager, DefaultCheckpointManager)
    assert manager.checkpoint_config is section


def test_a_class_by_name_is_made_with_the_section_and_called(here):
    manager = create_checkpoint_manager(section("own_managers.Own"), allowed_modules=["own_managers"])
    assert manager.has_checkpoint()
    manager.save(None)
    assert manager.load(None) == (7, 3.0)
    manager.finalize_async_saves(blocking=True)
    assert (manager.calls, manager.config.custom_manager_class) == (
        ["save", "load", "finalize"],
        "own_managers.Own",
    )


def test_the_documented_protocol_is_enough(here):
    manager = create_checkpoint_manager(section("own_managers.Documented"))
    assert (isinstance(manager, CheckpointManager), isinstance(manager, CheckpointProbe)) == (True, False)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Own", "has no dot"),
        ("no_such_module.Own", "cannot import no_such_module"),
        ("own_managers.Other", "own_managers has no Other"),
        ("own_managers.WithoutLoad", "lacks load, finalize_async_saves"),
        ("own_managers.OneArgument", "save does not take what a manager's does"),
        (".x", "'.x' is not a module and class"),
        ("a..b", "'a..b' is not a module and class"),
        ("os.path.sep", "os.path.sep is not a class but '/'"),
        ("json.JSONDecoder", "its constructor does not take what a manager's does"),
        ("math.floor", "math.floor is not a class but <built-in"),
        ("builtins.dict", r"its constructor does not take .*\(no signature found"),
    ],
)
def test_a_wrong_class_is_rejected_with_the_reason(here, name, message):
    with pytest.raises(CheckpointConfigError, match=f"checkpoint.custom_manager_class: .*{message}"):
        create_checkpoint_manager(section(name))


def test_a_module_that_is_not_allowed_is_not_even_imported():
    with pytest.raises(CheckpointConfigError, match="antigravity is not among the allowed modules"):
        create_checkpoint_manager(section("antigravity.Manager"), allowed_modules=["mine"])
