"""Factory of checkpoint managers: the default one, or a custom class by its dotted name."""

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from mb_checkpoint.config import CheckpointConfig
from mb_checkpoint.context import CheckpointManager
from mb_checkpoint.errors import CheckpointConfigError
from mb_checkpoint.manager import DefaultCheckpointManager

FIELD = "checkpoint.custom_manager_class"


def create_checkpoint_manager(
    checkpoint_config: CheckpointConfig,
    *,
    allowed_modules: Sequence[str] | None = None,
    write_assets: Callable[[Path], None] | None = None,
    log_outcomes: bool = True,
) -> CheckpointManager:
    """Create the checkpoint manager of a run.

    Args:
        checkpoint_config: The section; `custom_manager_class` names a class, None selects the default one.
        allowed_modules: Packages and modules that the name may begin with; None allows any. Importing a module executes
            it, so set this if the section comes from an untrusted source.
        write_assets: Passed to the default manager.
        log_outcomes: Passed to the default manager.

    Raises:
        CheckpointConfigError: The name is not that of a class in a module, its module is not allowed or cannot be
            imported, or the class is not a checkpoint manager; or the default manager rejects the section.
    """
    name = checkpoint_config.custom_manager_class
    if name is None:
        return DefaultCheckpointManager(
            checkpoint_config, write_assets=write_assets, log_outcomes=log_outcomes
        )
    manager_class = _class(name, allowed_modules)
    _reject_other_signature(
        name, manager_class, (object(),), "its constructor", "__init__(self, checkpoint_config)"
    )
    manager = manager_class(checkpoint_config)
    if not isinstance(manager, CheckpointManager):
        lacks = [method for method in _METHODS if not hasattr(manager, method)]
        raise CheckpointConfigError(
            f"{FIELD}: {name} lacks {', '.join(lacks)}. Add what CheckpointManager has."
        )
    _reject_other_signature(
        name, manager.save, (object(), object()), "save", "save(self, ctx, callback_manager=None)"
    )
    return manager


def _reject_other_signature(
    name: str, called: Callable[..., Any], arguments: tuple[object, ...], described: str, signature: str
) -> None:
    try:
        inspect.signature(called).bind(*arguments)
    except (TypeError, ValueError) as error:  # ValueError: of some builtin classes nothing is known
        raise CheckpointConfigError(
            f"{FIELD}: {name}: {described} does not take what a manager's does ({error}). Define {signature}."
        ) from error


_METHODS = ("save", "load", "finalize_async_saves")


def _class(name: str, allowed_modules: Sequence[str] | None) -> Any:
    module, dot, attribute = name.rpartition(".")
    if not dot:
        raise CheckpointConfigError(
            f"{FIELD}: {name!r} has no dot. Give module and class, such as mine.storage.Manager."
        )
    if not all(part.isidentifier() for part in name.split(".")):
        raise CheckpointConfigError(
            f"{FIELD}: {name!r} is not a module and class. Give both, such as mine.storage.Manager."
        )
    if allowed_modules is not None and not any(
        module == allowed or module.startswith(f"{allowed}.") for allowed in allowed_modules
    ):
        raise CheckpointConfigError(
            f"{FIELD}: {module} is not among the allowed modules {list(allowed_modules)}. Add it there."
        )
    try:
        imported = import_module(module)
    except ImportError as error:
        raise CheckpointConfigError(
            f"{FIELD}: cannot import {module} ({error}). Install it, or correct the name."
        ) from error
    if not hasattr(imported, attribute):
        raise CheckpointConfigError(f"{FIELD}: {module} has no {attribute}. Correct the name.")
    named_class = getattr(imported, attribute)
    if not inspect.isclass(named_class):
        raise CheckpointConfigError(
            f"{FIELD}: {name} is not a class but {named_class!r:.40}. Name a class that takes the checkpoint section."
        )
    return named_class
